#include "server/engine/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "model/unicode.h"

namespace strata {
namespace {

uint64_t EdgeKey(uint32_t node, char byte) {
  return uint64_t{node} << 8 | static_cast<uint8_t>(byte);
}

absl::Status CheckStop(size_t index, absl::string_view stop) {
  if (stop.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("stop[", index, "] is empty"));
  }
  if (stop.size() > StopSet::kStopBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("stop[", index, "] has ", stop.size(),
                                                   " bytes; at most ", StopSet::kStopBytesMax,
                                                   " are allowed"));
  }
  if (ValidUtf8Prefix(stop) != stop.size()) {
    return absl::InvalidArgumentError(absl::StrCat("stop[", index, "] is not UTF-8"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status StopSet::Check(const std::vector<std::string>& stops) {
  if (stops.size() > kStopsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("stop has ", stops.size(), " strings; at most ", kStopsMax, " are allowed"));
  }
  for (size_t i = 0; i < stops.size(); ++i) STRATA_RETURN_IF_ERROR(CheckStop(i, stops[i]));
  return absl::OkStatus();
}

StopSet::StopSet(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (size_t i = 0; i < stops_.size(); ++i) {
    const bool whole = ValidUtf8Prefix(stops_[i]) == stops_[i].size();
    if (whole && !stops_[i].empty()) Insert(static_cast<int32_t>(i));
  }
  LinkFallbacks();
}

void StopSet::Insert(int32_t index) {
  uint32_t node = 0;
  for (const char byte : stops_[static_cast<size_t>(index)]) {
    const auto [edge, added] =
        edges_.try_emplace(EdgeKey(node, byte), static_cast<uint32_t>(nodes_.size()));
    if (added) nodes_.push_back({.depth = nodes_[node].depth + 1});
    nodes_[node].grows = true;
    node = edge->second;
  }
  if (nodes_[node].stop < 0) nodes_[node].stop = index;  // the first of equal strings
}

void StopSet::LinkFallbacks() {
  struct Edge {
    uint32_t parent;
    char byte;
    uint32_t child;
  };
  std::vector<Edge> edges;
  edges.reserve(edges_.size());
  for (const auto& [key, child] : edges_) {
    edges.push_back({static_cast<uint32_t>(key >> 8), static_cast<char>(key & 0xFF), child});
  }
  // Shallow nodes first: a fallback is always shallower.
  std::sort(edges.begin(), edges.end(), [this](const Edge& a, const Edge& b) {
    return nodes_[a.child].depth < nodes_[b.child].depth;
  });
  for (const Edge& edge : edges) {
    Node& child = nodes_[edge.child];
    if (edge.parent != 0) child.fallback = Step(nodes_[edge.parent].fallback, edge.byte);
    if (child.stop < 0) child.stop = nodes_[child.fallback].stop;
  }
}

uint32_t StopSet::Step(uint32_t state, char byte) const {
  for (;;) {
    const auto edge = edges_.find(EdgeKey(state, byte));
    if (edge != edges_.end()) return edge->second;
    if (state == 0) return 0;
    state = nodes_[state].fallback;
  }
}

uint32_t StopSet::PassBy(uint32_t state) const {
  while (state != 0 && !nodes_[state].grows) state = nodes_[state].fallback;
  return state;
}

const std::string* StopSet::Matched(uint32_t state) const {
  const int32_t stop = nodes_[state].stop;
  return stop < 0 ? nullptr : &stops_[static_cast<size_t>(stop)];
}

StopMatcher::Result StopMatcher::Push(absl::string_view piece, bool may_stop) {
  Result result;
  for (const char byte : piece) {
    held_.push_back(byte);
    state_ = stops_.Step(state_, byte);
    const std::string* const matched = stops_.Matched(state_);
    if (matched == nullptr) continue;
    if (!may_stop) {
      state_ = stops_.PassBy(state_);
      continue;
    }
    STRATA_CHECK(held_.size() >= matched->size());
    result.text = held_.substr(0, held_.size() - matched->size());
    result.matched = matched;
    held_.clear();
    return result;
  }
  const size_t safe = held_.size() - stops_.SuffixBytes(state_);
  result.text = held_.substr(0, safe);
  held_.erase(0, safe);
  return result;
}

std::string StopMatcher::Finish() { return std::exchange(held_, ""); }

}  // namespace strata
