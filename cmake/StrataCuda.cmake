# Finds what of CUDA is here, and compiles kernels: for GPUs by nvcc, or by the host compiler for the
# executor that runs them in tests. Custom commands rather than CMake's CUDA language: one call of nvcc
# for all architectures, and no toolkit needed to configure.
#
# Sets STRATA_CUDA_EMULATED (the toolkit's headers are here: kernel tests are built) and STRATA_CUDA_NVCC
# (so is its compiler: the kernels are built for GPUs).

set(STRATA_CUDA AUTO CACHE STRING "CUDA: AUTO (what is found), ON (nvcc is required) or OFF")
set(STRATA_CUDA_ROOT "" CACHE PATH "CUDA 13 toolkit; empty: the usual places")
set(STRATA_CUDA_ARCHITECTURES 80 90 120 CACHE STRING "Compute capabilities to compile for")

set(STRATA_CUDA_EMULATED OFF)
set(STRATA_CUDA_NVCC OFF)
set(cuda_places ${STRATA_CUDA_ROOT} /usr/local/cuda)
if(NOT STRATA_CUDA STREQUAL "OFF")
  find_path(STRATA_CUDA_INCLUDE cuda_runtime_api.h PATHS ${cuda_places} PATH_SUFFIXES include
            NO_DEFAULT_PATH)
  find_program(STRATA_CUDA_COMPILER nvcc PATHS ${cuda_places} PATH_SUFFIXES bin NO_DEFAULT_PATH)
  find_library(STRATA_CUDART libcudart_static.a PATHS ${cuda_places} PATH_SUFFIXES lib64 lib
               NO_DEFAULT_PATH)
endif()
if(STRATA_CUDA_INCLUDE)
  file(STRINGS "${STRATA_CUDA_INCLUDE}/cuda_runtime_api.h" version REGEX "#define CUDART_VERSION ")
  string(REGEX MATCH "[0-9]+" version "${version}")
  if(version LESS 13000)
    message(STATUS "CUDA: ${STRATA_CUDA_INCLUDE} is version ${version}, older than 13000: not used")
    set(STRATA_CUDA_INCLUDE "")
  endif()
endif()
if(STRATA_CUDA_INCLUDE)
  set(STRATA_CUDA_EMULATED ON)
  add_library(strata_cuda_headers INTERFACE)
  target_include_directories(strata_cuda_headers SYSTEM INTERFACE "${STRATA_CUDA_INCLUDE}")
endif()
if(STRATA_CUDA_INCLUDE AND STRATA_CUDA_COMPILER AND STRATA_CUDART)
  set(STRATA_CUDA_NVCC ON)
  add_library(strata_cuda_runtime INTERFACE)  # static: a binary needs no toolkit where it runs
  target_link_libraries(strata_cuda_runtime INTERFACE strata_cuda_headers "${STRATA_CUDART}"
                                                      Threads::Threads ${CMAKE_DL_LIBS} rt)
  message(STATUS "CUDA: kernels for sm_${STRATA_CUDA_ARCHITECTURES} by ${STRATA_CUDA_COMPILER}")
elseif(STRATA_CUDA STREQUAL "ON")
  message(FATAL_ERROR "STRATA_CUDA=ON, but no CUDA toolkit is in '${STRATA_CUDA_ROOT}' or /usr/local/cuda")
elseif(STRATA_CUDA_EMULATED)
  message(STATUS "CUDA: no nvcc, so kernels run in tests only (on the CPU)")
elseif(STRATA_CUDA STREQUAL "OFF")
  message(STATUS "CUDA: off")
else()
  message(STATUS "CUDA: no toolkit found, so neither kernels nor their tests are built")
endif()

# A spill of registers to memory is an error, as every warning is. The executor's build has
# -ffp-contract=off; nvcc may fuse except where a kernel says __fmaf_rn, __fmul_rn or __fadd_rn.
set(nvcc_flags -std=c++20 -O3 -lineinfo -I${CMAKE_SOURCE_DIR} -Xcompiler=-fPIC,-Wall
               -Werror=all-warnings -Xptxas=--warn-on-spills,--warning-as-error,--verbose)
foreach(architecture ${STRATA_CUDA_ARCHITECTURES})
  list(APPEND nvcc_flags -gencode=arch=compute_${architecture},code=sm_${architecture})
endforeach()
list(APPEND nvcc_flags -gencode=arch=compute_90,code=compute_90)  # PTX for architectures in between

# strata_nvcc_objects(OUT a.cu ...): the objects of kernel files, compiled for GPUs. What ptxas says of each
# kernel's registers and memory goes to OBJECT.log, for tools/cuda_resources.
function(strata_nvcc_objects out)
  set(objects)
  foreach(source ${ARGN})
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}")
    cmake_path(GET source FILENAME name)
    set(object "${CMAKE_CURRENT_BINARY_DIR}/${name}.o")
    add_custom_command(
      OUTPUT "${object}"
      COMMAND sh -c "\"$0\" \"$@\" 2>'${object}.log' || { cat '${object}.log' >&2 && exit 1; }"
              ${STRATA_CCACHE} "${STRATA_CUDA_COMPILER}" ${nvcc_flags} -MD -MF "${object}.d" -c
              "${source}" -o "${object}"
      DEPENDS "${source}"
      DEPFILE "${object}.d"
      COMMENT "Compiling ${name} for GPUs"
      VERBATIM)
    list(APPEND objects "${object}")
  endforeach()
  set(${out} ${objects} PARENT_SCOPE)
endfunction()

# strata_emulated_kernels(NAME [EXECUTABLE] FILES a.cu ... EXECUTOR library FLAGS flag ...): a library (or a
# program) of kernel files compiled as C++ against an executor; FLAGS are a sanitizer's.
function(strata_emulated_kernels name)
  cmake_parse_arguments(ARG "EXECUTABLE" "EXECUTOR" "FILES;FLAGS" ${ARGN})
  if(NOT ARG_FILES)
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${ARG_EXECUTOR})
    return()
  endif()
  set_source_files_properties(${ARG_FILES} PROPERTIES LANGUAGE CXX)
  if(ARG_EXECUTABLE)
    add_executable(${name} ${ARG_FILES})
  else()
    add_library(${name} STATIC ${ARG_FILES})
  endif()
  target_link_libraries(${name} PUBLIC ${ARG_EXECUTOR})
  # Unrolled loops with a check at every access take the optimizer minutes.
  set(optimize -O2)
  if(ARG_FLAGS OR STRATA_SANITIZE)
    set(optimize -O1)
  endif()
  target_compile_options(${name} PRIVATE -Wno-unknown-pragmas ${optimize} ${ARG_FLAGS})
endfunction()
