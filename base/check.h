#pragma once

#include <cstdio>
#include <cstdlib>

// Checks of internal invariants. They stay on in every build: a broken invariant must stop the
// process before it corrupts somebody's cache. Conditions that depend on input from outside are
// never checked this way; they return absl::Status.
namespace strata::internal {

[[noreturn]] inline void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace strata::internal

#define STRATA_CHECK(condition)                      \
  (__builtin_expect(static_cast<bool>(condition), 1) \
       ? static_cast<void>(0)                        \
       : ::strata::internal::CheckFailed(__FILE__, __LINE__, #condition))
