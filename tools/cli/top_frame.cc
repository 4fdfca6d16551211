#include "tools/cli/top_frame.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/cli/styled_line.h"

namespace strata::cli {
namespace {

// Rows with a higher rank go first where not all fit.
enum Rank { kAlways, kTiers, kSpeed, kLinks, kHealth, kExtra, kSpace };

struct Row {
  StyledLine line;
  Rank rank = kAlways;
};

struct Unit {
  double size;
  const char* name;
};
// The largest of which there is at least one, or nearly.
Unit UnitOf(double bytes) {
  static constexpr Unit kUnits[] = {
      {0x1p40, "TiB"}, {0x1p30, "GiB"}, {0x1p20, "MiB"}, {0x1p10, "KiB"}};
  for (const Unit& unit : kUnits) {
    if (bytes >= 0.98 * unit.size) return unit;
  }
  return {1, "B"};
}
std::string In(const Unit& unit, double bytes) {
  const double value = bytes / unit.size;
  return absl::StrFormat("%.*f", unit.size > 1 && value < 100 ? 1 : 0, value);
}
std::string Bytes(double bytes) {
  const Unit unit = UnitOf(bytes);
  return absl::StrCat(In(unit, bytes), " ", unit.name);
}

std::string Thousands(uint64_t value) {
  std::string text = absl::StrCat(value);
  for (int at = static_cast<int>(text.size()) - 3; at > 0; at -= 3) {
    text.insert(static_cast<size_t>(at), ",");
  }
  return text;
}

std::string Share(double part, double all) {
  return all > 0 ? absl::StrFormat("%.0f %%", 100 * part / all) : "-";
}
std::string Saved(uint64_t bytes, uint64_t f16_bytes) {
  if (bytes >= f16_bytes) return "-";
  return Share(static_cast<double>(f16_bytes) - static_cast<double>(bytes),
               static_cast<double>(f16_bytes));
}

std::string Time(const std::optional<double>& seconds) {
  if (!seconds.has_value()) return "-";
  if (*seconds < 1e-3) return absl::StrFormat("%.0f us", *seconds * 1e6);
  if (*seconds < 1) return absl::StrFormat("%.*f ms", *seconds < .01 ? 1 : 0, *seconds * 1e3);
  return absl::StrFormat("%.*f s", *seconds < 100 ? 1 : 0, *seconds);
}

Ink InkOf(const std::string& tier) {
  return tier == "hot" ? Ink::kHot : tier == "warm" ? Ink::kWarm : Ink::kCold;
}

class Frame {
 public:
  Frame(const TopView& view, FrameSize size, FrameStyle style)
      : view_(view), size_(size), style_(style) {}

  std::vector<std::string> Draw() {
    Title();
    Problems();
    Space();
    Tiers();
    Space();
    Links();
    Space();
    Work();
    Space();
    Health();
    if (style_.keys) Put(kExtra).Add("q quits", Ink::kDim);
    Fit();
    std::vector<std::string> lines;
    for (const Row& row : rows_) lines.push_back(row.line.Paint(size_.columns, style_.color));
    return lines;
  }

 private:
  StyledLine& Put(Rank rank) {
    rows_.push_back({StyledLine(), rank});
    return rows_.back().line;
  }
  void Space() { Put(kSpace); }

  void Title();
  void Problems();
  void Tiers();
  void Tier(const TopView::Tier& tier);
  void Links();
  void Work();
  void Speed(const char* what, double rate, const std::vector<double>& rates);
  void Health();
  // Takes rows away until the rest fits, the least important first and of those the last.
  void Fit();

  const TopView& view_;
  const FrameSize size_;
  const FrameStyle style_;
  std::vector<Row> rows_;
};

void Frame::Title() {
  std::string state = "all is well";
  Ink ink = Ink::kGood;
  if (!view_.problems.empty()) {
    const bool bad = view_.problems.front().bad;
    state = bad ? "SOMETHING IS WRONG" : "look here";
    ink = bad ? Ink::kBad : Ink::kCaution;
  }
  if (!view_.lost.empty()) {
    state = "NO CONNECTION";
    ink = Ink::kBad;
  }
  const int room = std::max(0, size_.columns - static_cast<int>(state.size()) - 1);
  StyledLine& line = Put(kAlways);
  line.Add("strata ", Ink::kBold);
  line.Left(Printable(absl::StrCat(view_.model, " at ", view_.server)),
            std::max(0, room - line.width()));
  line.Add(" ").Add(state, ink);
}

void Frame::Problems() {
  if (!view_.lost.empty()) {
    Put(kAlways).Add(Printable(absl::StrCat("! ", view_.lost, "; trying again")), Ink::kBad);
  }
  for (const TopProblem& problem : view_.problems) {
    Put(kAlways).Add(absl::StrCat("! ", problem.text), problem.bad ? Ink::kBad : Ink::kCaution);
  }
}

// Cells right of a tier's bar: used of capacity, share, tokens, bits, saved.
constexpr int kTierTail = 18 + 6 + 10 + 6 + 7;
constexpr int kTierHead = 5 + 7;

void Frame::Tiers() {
  uint64_t used = 0, f16 = 0, tokens = 0;
  for (const TopView::Tier& tier : view_.tiers) {
    used += tier.used;
    f16 += tier.f16_bytes;
    tokens += tier.tokens;
  }
  StyledLine& line = Put(kTiers);
  if (tokens == 0) {
    line.Add("the cache is empty: no request runs", Ink::kDim);
  } else {
    line.Add(absl::StrCat(Thousands(tokens), " tokens in ", Bytes(static_cast<double>(used)),
                          " instead of ", Bytes(static_cast<double>(f16)), " of F16: "),
             Ink::kBold);
    line.Add(absl::StrCat(Saved(used, f16), " saved"), Ink::kGood);
  }
  const int bar = std::max(4, size_.columns - kTierHead - kTierTail);
  Put(kTiers)
      .Left("TIER", 5, Ink::kDim)
      .Left("FORMAT", 7, Ink::kDim)
      .Left(style_.unicode ? "█ used ▒ promised" : "# used = promised", bar, Ink::kDim)
      .Right("USED OF", 18, Ink::kDim)
      .Right("", 6)
      .Right("TOKENS", 10, Ink::kDim)
      .Right("BITS", 6, Ink::kDim)
      .Right("SAVED", 7, Ink::kDim);
  for (const TopView::Tier& tier : view_.tiers) Tier(tier);
}

void Frame::Tier(const TopView::Tier& tier) {
  const int bar = std::max(4, size_.columns - kTierHead - kTierTail);
  const auto used = static_cast<double>(tier.used);
  const auto capacity = static_cast<double>(tier.capacity);
  StyledLine& line = Put(kTiers);
  line.Left(tier.name, 5, InkOf(tier.name)).Left(Printable(tier.layout), 7);
  if (tier.capacity == 0) {
    line.Add("none", Ink::kDim);
    return;
  }
  line.Add(Bar({used, static_cast<double>(tier.reserved), capacity}, bar, style_.unicode),
           InkOf(tier.name));
  line.Right(absl::StrCat(In(UnitOf(capacity), used), " of ", Bytes(capacity)), 18)
      .Right(Share(used, capacity), 6, Ink::kBold)
      .Right(Thousands(tier.tokens), 10)
      .Right(absl::StrFormat("%.1f", tier.bits_per_value), 6)
      .Right(Saved(tier.used, tier.f16_bytes), 7, Ink::kGood);
}

void Frame::Links() {
  Put(kLinks)
      .Left("LINK", 18, Ink::kDim)
      .Right("NOW", 12, Ink::kDim)
      .Right("F16 WOULD", 12, Ink::kDim)
      .Right("SAVED", 8, Ink::kDim)
      .Right("IN TOTAL", 12, Ink::kDim);
  for (const TopView::Link& link : view_.links) {
    const std::string target = link.to == "hot" ? "attention" : link.to;
    Put(kLinks)
        .Left(absl::StrCat(link.from, style_.unicode ? " → " : " > ", target), 18, InkOf(link.from))
        .Right(absl::StrCat(Bytes(link.rate), "/s"), 12)
        .Right(absl::StrCat(Bytes(link.f16_rate), "/s"), 12)
        .Right(Saved(link.bytes, link.f16_bytes), 8, Ink::kGood)
        .Right(Bytes(static_cast<double>(link.bytes)), 12);
  }
}

void Frame::Speed(const char* what, double rate, const std::vector<double>& rates) {
  Put(kSpeed)
      .Left(what, 11, Ink::kDim)
      .Right(absl::StrFormat("%.1f", rate), 8, Ink::kBold)
      .Left(" tokens/s ", 10)
      .Add(Sparkline(rates, std::max(0, std::min(60, size_.columns - 30)), style_.unicode),
           Ink::kGood);
}

void Frame::Work() {
  StyledLine& requests = Put(kSpeed);
  requests.Left("REQUESTS", 11, Ink::kDim)
      .Add(absl::StrCat(view_.running, " running"), Ink::kBold)
      .Add(", ")
      .Add(absl::StrCat(view_.waiting, " waiting"), view_.waiting > 0 ? Ink::kCaution : Ink::kPlain)
      .Add(absl::StrCat(", ", Thousands(view_.finished), " done, "))
      .Add(absl::StrCat(view_.failed, " failed"), view_.failed > 0 ? Ink::kBad : Ink::kPlain)
      .Add(absl::StrCat(", ", view_.rejected, " refused"));
  Speed("GENERATED", view_.generated_rate, view_.generated_rates);
  Speed("PROMPTS", view_.prompt_rate, view_.prompt_rates);
  Put(kSpeed)
      .Left("LATENCY", 11, Ink::kDim)
      .Add(absl::StrCat("first token ", Time(view_.first_token.median), " (95 %: ",
                        Time(view_.first_token.p95), "), next ", Time(view_.between_tokens.median),
                        " (95 %: ", Time(view_.between_tokens.p95), ")"));
}

void Frame::Health() {
  if (view_.has_cold) {
    Put(kHealth)
        .Left("DISK", 11, Ink::kDim)
        .Add(view_.degraded ? "degraded" : "fine", view_.degraded ? Ink::kBad : Ink::kGood)
        .Add(absl::StrFormat(", steps wait for it %.1f %% of their time", 100 * view_.wait_share))
        .Add(view_.staged_share.has_value()
                 ? absl::StrFormat(", %.0f %% of pages staged", 100 * *view_.staged_share)
                 : "");
  }
  StyledLine& faults = Put(kHealth);
  faults.Left("FAULTS", 11, Ink::kDim);
  const std::pair<uint64_t, const char*> counts[] = {
      {view_.io_errors, " failed transfers"},
      {view_.damaged_records, " damaged records"},
      {view_.recomputed_tokens, " tokens recomputed"}};
  bool first = true;
  for (const auto& [count, what] : counts) {
    faults.Add(first ? "" : ", ")
        .Add(absl::StrCat(count, what), count > 0 ? Ink::kBad : Ink::kPlain);
    first = false;
  }
  StyledLine& errors = Put(kExtra);
  errors.Left("ERROR", 11, Ink::kDim);
  bool any = false;
  for (const TopView::Tier& tier : view_.tiers) {
    if (tier.k_error <= 0 && tier.v_error <= 0) continue;
    errors.Add(absl::StrFormat("%s%s K %.2f V %.2f", any ? ", " : "", tier.name, tier.k_error,
                               tier.v_error));
    any = true;
  }
  errors.Add(any ? " of the size of F16's values" : "no page sampled yet", Ink::kDim);
}

void Frame::Fit() {
  while (static_cast<int>(rows_.size()) > std::max(size_.rows, 1)) {
    auto worst = rows_.begin();
    for (auto row = rows_.begin(); row != rows_.end(); ++row) {
      if (row->rank >= worst->rank) worst = row;
    }
    rows_.erase(worst);
  }
}

}  // namespace

std::vector<std::string> DrawTop(const TopView& view, FrameSize size, FrameStyle style) {
  return Frame(view, size, style).Draw();
}

}  // namespace strata::cli
