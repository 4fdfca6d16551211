#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace strata::cli {

enum class Ink { kPlain, kBold, kDim, kHot, kWarm, kCold, kGood, kCaution, kBad };

// One line of a terminal in pieces of one ink each. A character is a code point of one cell: what
// comes from outside must have passed Printable().
class StyledLine {
 public:
  StyledLine& Add(absl::string_view text, Ink ink = Ink::kPlain);
  // Flush left or right in `width` cells; too long a text is cut.
  StyledLine& Left(absl::string_view text, int width, Ink ink = Ink::kPlain);
  StyledLine& Right(absl::string_view text, int width, Ink ink = Ink::kPlain);
  int width() const { return width_; }

  // At most `columns` cells, with escapes if `color`.
  std::string Paint(int columns, bool color) const;

 private:
  struct Piece {
    std::string text;
    Ink ink;
  };
  std::vector<Piece> pieces_;
  int width_ = 0;
};

// Code points of UTF-8.
int CellsOf(absl::string_view text);
// `text` with '?' for all that is not printable ASCII.
std::string Printable(absl::string_view text);

// `width` cells for 0 <= used <= reserved <= capacity.
struct BarParts {
  double used = 0, reserved = 0, capacity = 0;
};
std::string Bar(const BarParts& parts, int width, bool unicode);
// The latest `width` values, the largest as high as a line.
std::string Sparkline(const std::vector<double>& values, int width, bool unicode);

}  // namespace strata::cli
