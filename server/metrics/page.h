#pragma once

#include "absl/strings/string_view.h"

namespace strata {

// The page at /, whole: page/page.html with its style and script in it (embed_page.cmake). Every
// kNonceMark in it is to be replaced by the nonce of the answer.
extern const absl::string_view kPage;
inline constexpr absl::string_view kNonceMark = "%NONCE%";

}  // namespace strata
