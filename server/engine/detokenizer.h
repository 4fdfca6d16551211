#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace strata {

// Turns a stream of bytes into whole UTF-8. The bytes of a character that is not complete wait;
// ill-formed bytes become U+FFFD, one for each maximal subpart (Unicode 15, section 3.9), as soon
// as no further byte could make them well-formed. One stream, one thread.
class Utf8Assembler {
 public:
  std::string Push(absl::string_view bytes);
  // What waits can no longer be completed.
  std::string Finish();

 private:
  std::string pending_;  // well-formed so far; at most 3 bytes
};

}  // namespace strata
