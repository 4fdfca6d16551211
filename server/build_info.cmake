# Writes build_info.h with the version and the commit; run at every build, touches the file only
# when something changed.
cmake_minimum_required(VERSION 3.25)
set(commit "${COMMIT}")
if(NOT commit)
  execute_process(COMMAND git -C "${SOURCE_DIR}" rev-parse --short=12 HEAD
                  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT commit)
  set(commit "unknown")
endif()
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT "#pragma once

namespace strata {

inline constexpr char kBuildVersion[] = \"@VERSION@\";
inline constexpr char kBuildCommit[] = \"@commit@\";

}  // namespace strata
" @ONLY)
