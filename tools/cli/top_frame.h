#pragma once

#include <string>
#include <vector>

#include "tools/cli/top_view.h"

namespace strata::cli {

struct FrameSize {
  int rows = 24;
  int columns = 80;
};

struct FrameStyle {
  bool color = true;    // SGR escapes
  bool unicode = true;  // block characters; else ASCII
  bool keys = true;     // names the keys
};

// Draws a view: at most `rows` lines of at most `columns` characters, the most important first
// where not all fit. A pure function.
std::vector<std::string> DrawTop(const TopView& view, FrameSize size, FrameStyle style);

}  // namespace strata::cli
