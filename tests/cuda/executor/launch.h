#pragma once

// Launching a kernel: in order on its stream, which may run it now or later (control.h).

#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/cuda/executor/builtins.h"

namespace executor {

struct KernelCall {
  const void* function;  // its identity, for attributes
  dim3 grid, block;
  size_t dynamic_shared_bytes;
};

cudaError_t LaunchKernel(const KernelCall& call, cudaStream_t stream, std::function<void()> body);

template <class... P, class... A>
cudaError_t Launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t dynamic_shared_bytes,
                   cudaStream_t stream, A&&... arguments) {
  // Parameters are copied at the launch, as the real call copies them.
  std::tuple<std::decay_t<P>...> copies(std::forward<A>(arguments)...);
  const KernelCall call{reinterpret_cast<const void*>(kernel), grid, block, dynamic_shared_bytes};
  return LaunchKernel(call, stream, [kernel, copies] { std::apply(kernel, copies); });
}

}  // namespace executor

// As <cuda_runtime.h> has it: a kernel's address needs no cast.
template <class T>
inline cudaError_t cudaFuncSetAttribute(T* kernel, cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
