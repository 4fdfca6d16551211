#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "bench/cuda/suites.h"
#include "kernels/cuda/sample_launch.h"
#include "model/device_draws.h"
#include "tests/cuda/device_buffer.h"

namespace strata::bench {
namespace {

struct Subject {
  const char* name;
  SamplingParams params;
};

// Draws of `rows` rows by one request.
DeviceDraws Draws(const SamplingParams& params, int32_t rows, int32_t vocab) {
  DeviceDraws draws;
  for (int32_t row = 0; row < rows; ++row) {
    draws.Add({.logits_index = row,
               .params = &params,
               .state = {.position = static_cast<uint64_t>(row)},
               .with_logprob = false});
  }
  draws.Prepare(vocab);
  return draws;
}

}  // namespace

// Microseconds of one launch over rows of a usual vocabulary, without log probabilities.
absl::StatusOr<nlohmann::json> RunCudaSample(const CudaBenchOptions& options) {
  const int32_t vocab = options.smoke ? 3000 : 128256;
  const Subject subjects[] = {
      {"greedy", {}},
      {"temperature", {.temperature = 1}},
      {"min_p", {.temperature = 1, .min_p = 0.05f}},
      {"top_p", {.temperature = 1, .top_p = 0.95f}},
      {"top_k and top_p", {.temperature = 1, .top_k = 50, .top_p = 0.95f}},
  };
  constexpr int32_t kRowsMax = 16;
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(size_t{1} * kRowsMax * vocab);
  for (float& logit : logits) logit = normal(random);
  const DeviceBuffer<float> device_logits(logits);
  DeviceBuffer<float> tempered(logits.size());
  DeviceBuffer<uint64_t> weights(logits.size());
  DeviceBuffer<SampledRow> out(kRowsMax);
  STRATA_CUDA_OK(cuda::AllowSample());
  Sampler sampler;
  nlohmann::json results = nlohmann::json::array();
  for (const Subject& subject : subjects) {
    for (const int32_t rows : {1, kRowsMax}) {
      const DeviceDraws draws = Draws(subject.params, rows, vocab);
      const DeviceBuffer<SampleRow> device_rows({draws.rows().begin(), draws.rows().end()});
      cuda::SampleArgs args;
      args.logits = device_logits.data();
      args.vocab = vocab;
      args.rows = device_rows.data();
      args.count = rows;
      args.scratch = {tempered.data(), weights.data()};
      args.out = out.data();
      const double seconds = DeviceSeconds(
          options, nullptr, [&] { STRATA_CUDA_OK(cuda::LaunchSample(args, nullptr)); });
      const std::vector<SampledRow> drawn = out.Download();
      for (int32_t row = 0; row < rows; ++row) {
        const absl::Span<const float> row_logits(logits.data() + size_t{1} * row * vocab, vocab);
        const SamplingState state = {.position = static_cast<uint64_t>(row)};
        if (drawn[row].id != sampler.Sample(subject.params, state, row_logits, false).id) {
          return absl::InternalError(
              absl::StrCat(subject.name, ": the token of row ", row, " is not the host's"));
        }
      }
      results.push_back({{"request", subject.name}, {"rows", rows}, {"us", seconds * 1e6}});
    }
  }
  return nlohmann::json{{"vocab", vocab}, {"rows", results}};
}

}  // namespace strata::bench
