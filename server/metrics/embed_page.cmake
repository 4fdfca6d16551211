# Puts page.css and page.js into page.html and writes the whole as a C++ string (page.h).
cmake_minimum_required(VERSION 3.25)
file(READ "${FOLDER}/page.html" page)
file(READ "${FOLDER}/page.css" css)
file(READ "${FOLDER}/page.js" js)
string(REPLACE "/*page.css*/" "${css}" page "${page}")
string(REPLACE "/*page.js*/" "${js}" page "${page}")
# A string literal may be limited to 64 KiB, and must not end early.
string(LENGTH "${page}" length)
if(length GREATER 60000 OR page MATCHES "\\)page\"")
  message(FATAL_ERROR "the page cannot be a string literal: ${length} bytes")
endif()
file(WRITE "${OUTPUT}" "#include \"server/metrics/page.h\"

namespace strata {

const absl::string_view kPage = R\"page(${page})page\";

}  // namespace strata
")
