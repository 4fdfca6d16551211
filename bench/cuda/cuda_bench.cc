// Rates of the CUDA kernels next to the copy bandwidth of the same run:
//
//   cuda_bench [--smoke] [SUITE...]      copy, codec, matmul, attention, sample; all of them when
//   none is named
//
// One JSON object on standard output. Exit code 77: there is no GPU; 1: a result is wrong.

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "bench/cuda/suites.h"

namespace strata::bench {
namespace {

struct Suite {
  const char* name;
  absl::StatusOr<nlohmann::json> (*run)(const CudaBenchOptions& options);
};
constexpr Suite kSuites[] = {{"codec", RunCudaCodec},
                             {"matmul", RunCudaMatmul},
                             {"attention", RunCudaAttention},
                             {"sample", RunCudaSample}};

int Run(CudaBenchOptions options, const std::vector<std::string>& wanted) {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  cudaDeviceProp device;
  if (error != cudaSuccess || devices == 0 || cudaGetDeviceProperties(&device, 0) != cudaSuccess) {
    std::fprintf(stderr, "no GPU to measure: %s\n", cudaGetErrorString(error));
    return 77;
  }
  nlohmann::json report = {{"device", device.name},
                           {"compute_capability", device.major * 10 + device.minor},
                           {"multiprocessors", device.multiProcessorCount}};
  const absl::StatusOr<nlohmann::json> copy = RunCudaCopy(options);
  if (!copy.ok()) {
    std::fprintf(stderr, "copy: %s\n", copy.status().ToString().c_str());
    return 1;
  }
  report["copy"] = *copy;
  options.copy_bytes_per_s = copy->at("device_copy_bytes_per_s");
  int result = 0;
  for (const Suite& suite : kSuites) {
    bool chosen = wanted.empty();
    for (const std::string& name : wanted) chosen = chosen || name == suite.name;
    if (!chosen) continue;
    const absl::StatusOr<nlohmann::json> figures = suite.run(options);
    if (figures.ok()) {
      report[suite.name] = *figures;
      continue;
    }
    report[suite.name] = {{"error", figures.status().ToString()}};
    std::fprintf(stderr, "%s: %s\n", suite.name, figures.status().ToString().c_str());
    result = 1;
  }
  std::printf("%s\n", report.dump(1).c_str());
  return result;
}

}  // namespace
}  // namespace strata::bench

int main(int argc, char** argv) {
  strata::bench::CudaBenchOptions options;
  std::vector<std::string> suites;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--smoke") {
      options.smoke = true;
    } else if (argument == "copy" || argument == "codec" || argument == "matmul" ||
               argument == "attention" || argument == "sample") {
      suites.push_back(argument);
    } else {
      std::fprintf(stderr, "unknown argument: %s\n", argv[i]);
      return 2;
    }
  }
  return strata::bench::Run(options, suites);
}
