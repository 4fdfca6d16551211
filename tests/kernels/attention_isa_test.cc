#include <cstdlib>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/isa.h"

namespace strata {
namespace {

using testing::HasSubstr;

// Sets or clears STRATA_FORCE_ISA and puts it back.
class ForceIsaVariable {
 public:
  explicit ForceIsaVariable(const char* value) {
    const char* old = std::getenv("STRATA_FORCE_ISA");
    had_ = old != nullptr;
    if (had_) old_ = old;
    if (value != nullptr) {
      setenv("STRATA_FORCE_ISA", value, 1);
    } else {
      unsetenv("STRATA_FORCE_ISA");
    }
  }
  ~ForceIsaVariable() {
    if (had_) {
      setenv("STRATA_FORCE_ISA", old_.c_str(), 1);
    } else {
      unsetenv("STRATA_FORCE_ISA");
    }
  }

 private:
  bool had_ = false;
  std::string old_;
};

TEST(IsaTest, ScalarIsAlwaysThere) {
  const absl::StatusOr<Isa> isa = ChooseIsa("scalar");
  ASSERT_TRUE(isa.ok());
  EXPECT_EQ(*isa, Isa::kScalar);
}

TEST(IsaTest, UnknownNamesAreRefusedWithWhereTheyCameFrom) {
  const absl::StatusOr<Isa> option = ChooseIsa("sse9");
  EXPECT_EQ(option.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(option.status().message()), HasSubstr("'sse9' (from option)"));
  const ForceIsaVariable forced("mmx");
  const absl::StatusOr<Isa> variable = ChooseIsa("");
  EXPECT_EQ(variable.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(variable.status().message()), HasSubstr("'mmx' (from STRATA_FORCE_ISA)"));
}

TEST(IsaTest, TheOptionComesBeforeTheVariable) {
  const ForceIsaVariable forced("mmx");
  EXPECT_TRUE(ChooseIsa("scalar").ok());
}

TEST(IsaTest, DetectsTheBestThatCanBeForced) {
  const ForceIsaVariable none(nullptr);
  const absl::StatusOr<Isa> best = ChooseIsa("");
  ASSERT_TRUE(best.ok());
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    const absl::StatusOr<Isa> forced = ChooseIsa(IsaName(isa));
    EXPECT_EQ(forced.ok(), isa <= *best) << IsaName(isa);
    if (!forced.ok()) {
      EXPECT_EQ(forced.status().code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(std::string(forced.status().message()), HasSubstr("lacks: avx"));
    }
  }
}

}  // namespace
}  // namespace strata
