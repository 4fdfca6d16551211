#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "tools/cli/top_frame.h"

namespace strata::cli {

// The terminal while a full-screen view is shown: its other screen, no cursor, keys as they are
// typed. The destructor gives everything back, and so does Restore(). One at a time.
class FullScreen {
 public:
  FullScreen();
  ~FullScreen();
  FullScreen(const FullScreen&) = delete;
  FullScreen& operator=(const FullScreen&) = delete;

  // Shows these lines and nothing else, in one write, over what was there: no flicker.
  void Show(const std::vector<std::string>& lines);
  // Waits up to `timeout`; the key typed, or 0.
  char Key(std::chrono::milliseconds timeout);

  // As the destructor; for a way out that runs no destructors. Any thread.
  static void Restore();
};

// Of standard output; 24 x 80 where it is no terminal or does not know.
FrameSize TerminalSize();
// Whether the environment's locale has the characters of unicode frames.
bool LocaleHasUnicode();

}  // namespace strata::cli
