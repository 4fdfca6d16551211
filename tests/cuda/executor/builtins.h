#pragma once

// What a kernel sees before its first line when the host compiler compiles it: the toolkit's own
// types and prototypes, the built-in variables, and the keywords made harmless or forbidden.

#ifdef __CUDACC__
#error "the executor is for the host compiler; nvcc has the real thing"
#endif

#include <cuda_runtime_api.h>  // real types and prototypes; the executor has the definitions
#include <vector_functions.h>

// After the runtime's types.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <cstring>

// The toolkit defines __shared__ as nothing here: a raw one would silently become a thread's own
// local.
#undef __shared__
#define __shared__ use_GPU_SHARED_or_GPU_DYN_SHARED_instead_of__shared__
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__

#if defined(__clang__)
#define EXECUTOR_NO_TSAN __attribute__((no_sanitize("thread")))
#else
#define EXECUTOR_NO_TSAN __attribute__((no_sanitize_thread))
#endif

// Plain globals: rewritten at every switch of fibers.
extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;
inline constexpr int warpSize = 32;

namespace executor {

// Where in a kernel something was called: every collective takes one as a default argument.
struct Location {
  const char* file;
  int line;
};

}  // namespace executor

#define EXECUTOR_CALLER \
  const char *executor_file = __builtin_FILE(), int executor_line = __builtin_LINE()
#define EXECUTOR_HERE (::executor::Location{executor_file, executor_line})
