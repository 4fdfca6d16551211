# Helpers that keep every folder's CMakeLists.txt down to names and dependencies.

find_program(STRATA_CCACHE ccache)
if(STRATA_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${STRATA_CCACHE}")
endif()

add_library(strata_flags INTERFACE)
target_include_directories(strata_flags INTERFACE "${CMAKE_SOURCE_DIR}")
target_compile_options(strata_flags INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor
                                              -Wno-unused-parameter -Wno-missing-field-initializers
                                              -ffp-contract=off)
if(STRATA_WERROR)
  target_compile_options(strata_flags INTERFACE -Werror)
endif()
if(STRATA_SANITIZE)
  # One definition for every target: mixing instrumented and plain objects hides bugs.
  add_compile_options(-fsanitize=${STRATA_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${STRATA_SANITIZE})
  # g++ 12 reports false -Wmaybe-uninitialized in instrumented standard headers.
  add_compile_options(-Wno-maybe-uninitialized)
endif()

# strata_library(NAME SRCS a.cc ... DEPS lib ...): one library a folder; DEPS are the allowed edges.
function(strata_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  if(ARG_SRCS)
    add_library(${name} STATIC ${ARG_SRCS})
    target_link_libraries(${name} PUBLIC strata_flags ${ARG_DEPS})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE strata_flags ${ARG_DEPS})
  endif()
endfunction()

# strata_test(NAME SRCS a_test.cc ... DEPS lib ...): one GoogleTest binary a folder.
function(strata_test name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE strata_flags ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  set(timeout 300)
  if(STRATA_SANITIZE)
    set(timeout 1200)  # ThreadSanitizer takes 5 to 15 times as long
  endif()
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
  set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout})
endfunction()

# strata_skipped_test(NAME WHY): stands for a test that cannot run in this build, so that ctest says so.
function(strata_skipped_test name why)
  add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "SKIPPED: ${why}")
  set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "SKIPPED: ")
endfunction()
