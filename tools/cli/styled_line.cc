#include "tools/cli/styled_line.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace strata::cli {
namespace {

const char* CodeOf(Ink ink) {
  switch (ink) {
    case Ink::kPlain:
      return "";
    case Ink::kBold:
      return "\033[1m";
    case Ink::kDim:
      return "\033[2m";
    case Ink::kHot:
      return "\033[38;5;208m";
    case Ink::kWarm:
      return "\033[33m";
    case Ink::kCold:
      return "\033[36m";
    case Ink::kGood:
      return "\033[32m";
    case Ink::kCaution:
      return "\033[1;33m";
    case Ink::kBad:
      return "\033[1;31m";
  }
  return "";
}

bool Continues(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// The first `cells` code points.
absl::string_view Clip(absl::string_view text, int cells) {
  size_t end = 0;
  while (end < text.size() && (cells > 0 || Continues(text[end]))) {
    if (!Continues(text[end])) --cells;
    ++end;
  }
  return text.substr(0, end);
}

void Repeat(const char* text, int times, std::string* out) {
  for (int i = 0; i < times; ++i) out->append(text);
}

}  // namespace

int CellsOf(absl::string_view text) {
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), [](char c) { return !Continues(c); }));
}

std::string Printable(absl::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return out;
}

StyledLine& StyledLine::Add(absl::string_view text, Ink ink) {
  pieces_.push_back({std::string(text), ink});
  width_ += CellsOf(text);
  return *this;
}

StyledLine& StyledLine::Left(absl::string_view text, int width, Ink ink) {
  const absl::string_view fitting = Clip(text, width);
  return Add(absl::StrCat(fitting, std::string(width - CellsOf(fitting), ' ')), ink);
}

StyledLine& StyledLine::Right(absl::string_view text, int width, Ink ink) {
  const absl::string_view fitting = Clip(text, width);
  return Add(absl::StrCat(std::string(width - CellsOf(fitting), ' '), fitting), ink);
}

std::string StyledLine::Paint(int columns, bool color) const {
  std::string out;
  int left = columns;
  for (const Piece& piece : pieces_) {
    const absl::string_view fitting = Clip(piece.text, left);
    left -= CellsOf(fitting);
    const bool inked = color && piece.ink != Ink::kPlain && !fitting.empty();
    absl::StrAppend(&out, inked ? CodeOf(piece.ink) : "", fitting, inked ? "\033[0m" : "");
  }
  return out;
}

std::string Bar(const BarParts& parts, int width, bool unicode) {
  // Eighths of a cell, so that a little is seen too.
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto cells = [&](double value) {
    return parts.capacity > 0 ? std::clamp(value / parts.capacity, 0.0, 1.0) * width : 0.0;
  };
  const double used = cells(parts.used);
  int drawn = static_cast<int>(used);
  std::string out;
  Repeat(unicode ? "█" : "#", drawn, &out);
  const int eighths = static_cast<int>((used - drawn) * 8);
  if (unicode && eighths > 0) {
    out.append(kEighths[eighths]);
    ++drawn;
  }
  const int reserved = std::max(drawn, static_cast<int>(std::lround(cells(parts.reserved))));
  Repeat(unicode ? "▒" : "=", reserved - drawn, &out);
  Repeat(unicode ? "░" : ".", width - reserved, &out);
  return out;
}

std::string Sparkline(const std::vector<double>& values, int width, bool unicode) {
  static constexpr const char* kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  static constexpr const char* kAscii[] = {"_", "_", ".", ".", "-", "-", "^", "^"};
  const size_t shown = std::min<size_t>(values.size(), static_cast<size_t>(std::max(width, 0)));
  const auto begin = values.end() - static_cast<ptrdiff_t>(shown);
  const double most = shown == 0 ? 0 : *std::max_element(begin, values.end());
  std::string out(static_cast<size_t>(std::max(width, 0)) - shown, ' ');
  for (auto it = begin; it != values.end(); ++it) {
    const double part = most > 0 ? std::clamp(*it / most, 0.0, 1.0) : 0.0;
    out.append((unicode ? kBlocks : kAscii)[static_cast<int>(std::lround(part * 7))]);
  }
  return out;
}

}  // namespace strata::cli
