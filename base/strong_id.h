#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

namespace strata {

// An index that cannot be mixed up with an index of another kind, nor with a count. Ids compare and
// hash; they have no arithmetic. A default-constructed id is invalid.
template <typename Tag, typename Rep = uint32_t>
class StrongId {
 public:
  using Value = Rep;
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep value) : value_(value) {}

  constexpr Rep value() const { return value_; }
  constexpr bool valid() const { return value_ != kInvalid; }

  friend constexpr auto operator<=>(StrongId, StrongId) = default;

  template <typename H>
  friend H AbslHashValue(H h, StrongId id) {
    return H::combine(std::move(h), id.value_);
  }

 private:
  static constexpr Rep kInvalid = static_cast<Rep>(-1);
  Rep value_ = kInvalid;
};

}  // namespace strata
