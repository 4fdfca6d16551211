// Runs the kernel tests on a GPU. Exit code 77: there is none to run on, nothing was tested.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdio>

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "no GPU to test on: %s\n", cudaGetErrorString(error));
    return 77;
  }
  cudaDeviceProp device;
  if (cudaGetDeviceProperties(&device, 0) == cudaSuccess) {
    std::printf("%s, compute capability %d.%d\n", device.name, device.major, device.minor);
  }
  return RUN_ALL_TESTS();
}
