#include "tiering/mover.h"

#include <cmath>

#include "tiering/record_gather.h"

namespace strata {
namespace {

// One page in so many blocks is decoded again to measure its error: about 1 % of the encoding time.
constexpr uint64_t kSampleEvery = 16;

double RelativeRms(const float* exact, const float* decoded, size_t count) {
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < count; ++i) {
    const double difference = double{decoded[i]} - exact[i];
    error += difference * difference;
    norm += double{exact[i]} * exact[i];
  }
  return norm > 0 ? std::sqrt(error / norm) : 0;
}

size_t ValuesPerTensor(const PageFormat& format) {
  return size_t{1} * format.kv_heads * kBlockTokens * format.head_dim;
}

}  // namespace

Mover::Mover(const PageCodec* codec, Layouts layouts, ColdStore* store,
             CompletionQueue* completions)
    : codec_(codec),
      layouts_(layouts),
      store_(store),
      completions_(completions),
      queue_(kQueueMax),
      fetched_(layouts.hot->format(0).BaseBytes()),
      exact_(2 * ValuesPerTensor(layouts.hot->format(0))),
      decoded_(exact_.size()),
      thread_([this] { Loop(); }) {}

Mover::~Mover() {
  queue_.Close();
  thread_.join();
}

void Mover::Loop() {
  while (const std::optional<Job> job = queue_.Pop()) {
    std::visit([this](auto* what) { Run(what); }, *job);
  }
}

void Mover::Run(EncodeJob* job) {
  const auto begun = std::chrono::steady_clock::now();
  const BlockLayout& warm = *layouts_.warm;
  pages_.clear();
  for (int32_t layer = 0; layer < warm.layers(); ++layer) {
    std::byte* base = job->target + warm.base_offset(layer);
    std::byte* refine =
        warm.format(layer).RefineBytes() > 0 ? job->target + warm.refine_offset(layer) : nullptr;
    pages_.push_back({layouts_.hot->base(job->source, layer), warm.format(layer), base, refine});
  }
  job->refused = !codec_->EncodeAll(pages_).ok();
  job->took = std::chrono::steady_clock::now() - begun;
  job->error = {};
  if (!job->refused && encoded_++ % kSampleEvery == 0) {
    job->error = Sample(*job, static_cast<int32_t>(encoded_ / kSampleEvery % warm.layers()));
  }
  completions_->Push(job);
}

ErrorSample Mover::Sample(const EncodeJob& job, int32_t layer) {
  const PageFormat& hot = layouts_.hot->format(layer);
  const PageFormat& warm = layouts_.warm->format(layer);
  const std::byte* source = layouts_.hot->base(job.source, layer);
  if (!codec_->Fetch(source, hot.BaseBytes(), fetched_.data()).ok()) return {};
  PageCodec::Decode(hot, hot.k, hot.v, fetched_.data(), nullptr, exact_.data(),
                    exact_.data() + ValuesPerTensor(hot));
  // A record's pages are the warm ones with fewer planes, so this is what reading it back gives.
  const PageFormat& cold = layouts_.record->format(layer);
  return {true, ErrorsAs(job, layer, warm.k, warm.v), ErrorsAs(job, layer, cold.k, cold.v)};
}

ErrorSample::Tensors Mover::ErrorsAs(const EncodeJob& job, int32_t layer, KvKind k, KvKind v) {
  const PageFormat& warm = layouts_.warm->format(layer);
  const size_t values = ValuesPerTensor(warm);
  PageCodec::Decode(warm, k, v, layouts_.warm->base(job.target, layer),
                    layouts_.warm->refine(job.target, layer), decoded_.data(),
                    decoded_.data() + values);
  return {RelativeRms(exact_.data(), decoded_.data(), values),
          RelativeRms(exact_.data() + values, decoded_.data() + values, values)};
}

void Mover::Run(ColdStore::WriteOp* op) {
  GatherRecord(*layouts_.warm, *layouts_.record, op->source, op->buffer.data());
  store_->Write(op);
}

}  // namespace strata
