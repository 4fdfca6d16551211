#pragma once

#include <chrono>

namespace strata {

// Waiting ends with what is waited for; this is when a test gives up. Generous: a busy machine is
// no failure, and sanitizers make programs some ten times slower.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::chrono::seconds kPatience{300};
#else
constexpr std::chrono::seconds kPatience{60};
#endif

}  // namespace strata
