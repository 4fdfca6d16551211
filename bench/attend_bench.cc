#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/aligned_buffer.h"
#include "base/check.h"
#include "base/half.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "bench/measure.h"
#include "bench/suites.h"
#include "kernels/backend.h"
#include "server/config/format_name.h"

namespace strata::bench {
namespace {

// Sequences in the measured step.
constexpr int kSequences = 16;

// Pages of one layer, all in one format; a few distinct pages repeated, each
// repetition with memory of its own.
struct PagePool {
  PageFormat format;
  AlignedBuffer memory;
  std::vector<KvPageView> pages;

  // The pages of one of `sequences` sequences that share the pool evenly.
  PageRun Run(int sequence, int sequences) const {
    const auto count = static_cast<int32_t>(pages.size()) / sequences;
    return {.stored = format,
            .read_k = format.k,
            .read_v = format.v,
            .first_block = 0,
            .page_count = count,
            .tokens = count * kBlockTokens,
            .pages = pages.data() + size_t{1} * sequence * count};
  }
};

std::vector<std::vector<Half>> RandomPages(const PageFormat& f16, int count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<std::vector<Half>> pages(count);
  for (std::vector<Half>& page : pages) {
    page.resize(f16.BaseBytes() / sizeof(Half));
    for (Half& value : page) value = FloatToHalf(normal(random));
  }
  return pages;
}

absl::StatusOr<PagePool> Fill(const PageCodec& codec, const PageFormat& format,
                              const std::vector<std::vector<Half>>& sources, int64_t pages) {
  PagePool pool{.format = format, .memory = {}, .pages = {}};
  STRATA_CHECK(!sources.empty());
  const size_t page_bytes = format.Bytes();
  STRATA_ASSIGN_OR_RETURN(pool.memory, AlignedBuffer::Allocate(page_bytes * pages));
  const auto distinct = static_cast<int64_t>(sources.size());
  for (int64_t i = 0; i < pages; ++i) {
    std::byte* page = pool.memory.data() + page_bytes * i;
    if (i < distinct) {
      STRATA_RETURN_IF_ERROR(codec.Encode(reinterpret_cast<const std::byte*>(sources[i].data()),
                                          format, page, page + format.BaseBytes()));
    } else {
      std::copy_n(pool.memory.data() + page_bytes * (i % distinct), page_bytes, page);
    }
    pool.pages.push_back({.base = page, .refine = page + format.BaseBytes()});
  }
  return pool;
}

// One decode step: a query of each sequence over all of its pages. q: [query_heads][head_dim], of
// every sequence.
std::vector<float> Attend(AttentionBackend& attention, const AttentionShape& shape,
                          const std::vector<float>& q, const std::vector<PageRun>& runs,
                          PartialStates* states) {
  std::vector<AttentionSequence> sequences;
  std::vector<float> queries;
  for (const PageRun& run : runs) {
    sequences.push_back({.first_row = static_cast<int32_t>(sequences.size()),
                         .rows = 1,
                         .first_position = run.tokens - 1,
                         .runs = absl::Span<const PageRun>(&run, 1)});
    queries.insert(queries.end(), q.begin(), q.end());
  }
  states->Reset(static_cast<int32_t>(runs.size()), shape.query_heads, shape.head_dim);
  attention.Attend(shape, queries.data(), sequences, states);
  std::vector<float> out(queries.size());
  FinishStates(*states, out.data());
  return out;
}

// One format under measurement.
struct Subject {
  explicit Subject(const char* format) : name(format) {}
  const char* name;
  PagePool pages;
  double error = 0;
  std::vector<double> seconds;      // a round each
  std::vector<double> against_f16;  // F16's seconds over its own, in the same round
};

}  // namespace

absl::StatusOr<nlohmann::json> RunAttend(const BenchOptions& options) {
  const AttentionShape shape{options.query_heads, options.kv_heads, options.head_dim};
  STRATA_ASSIGN_OR_RETURN(Backend cpu, CreateCpuBackend({.threads = options.threads}));
  const Backend reference = CreateReferenceBackend();
  const PageFormat f16{KvKind::kF16, KvKind::kF16, shape.kv_heads, shape.head_dim};
  const auto sources = RandomPages(f16, 64);
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0.0f, 1.0f / std::sqrt(float(shape.head_dim)));
  std::vector<float> q(size_t{1} * shape.query_heads * shape.head_dim);
  for (float& value : q) value = normal(random);

  ThreadPool pool(options.threads);
  std::vector<Subject> subjects;
  for (const char* name : {"f16", "i4", "k4v2", "i2"}) {
    STRATA_ASSIGN_OR_RETURN(const TensorKinds kinds, ParseFormatName(name));
    Subject& subject = subjects.emplace_back(name);
    STRATA_ASSIGN_OR_RETURN(
        subject.pages, Fill(*cpu.codec, {kinds.k, kinds.v, shape.kv_heads, shape.head_dim}, sources,
                            options.attend_tokens / kBlockTokens));
    // The arithmetic (int8 q, 7-bit p) may add an error well below the format's own (I4's is 0.06).
    PartialStates states;
    PageRun part = subject.pages.Run(0, 1);
    part.page_count = 64;
    part.tokens = part.page_count * kBlockTokens;
    subject.error = RelativeRms(Attend(*cpu.attention, shape, q, {part}, &states),
                                Attend(*reference.attention, shape, q, {part}, &states));
    if (!(subject.error < 0.02)) {
      return absl::InternalError(absl::StrCat(name, ": attention is off by ", subject.error,
                                              " of the reference, limit 0.02"));
    }
  }
  // Round by round, the formats in turn: what disturbs the machine disturbs them alike, and the
  // ratios are of neighbours in time.
  PartialStates states;
  std::vector<double> bandwidths;
  for (int round = 0; round <= options.runs; ++round) {
    const double bandwidth = ReadBandwidth(&pool);
    for (Subject& subject : subjects) {
      std::vector<PageRun> runs;
      runs.reserve(kSequences);
      for (int i = 0; i < kSequences; ++i) runs.push_back(subject.pages.Run(i, kSequences));
      const double seconds = Seconds([&] { Attend(*cpu.attention, shape, q, runs, &states); });
      if (round == 0) continue;  // warms up
      subject.seconds.push_back(seconds);
      subject.against_f16.push_back(subjects[0].seconds.back() / seconds);
    }
    if (round > 0) bandwidths.push_back(bandwidth);
  }
  const double bandwidth = Median(bandwidths);
  nlohmann::json rows = nlohmann::json::array();
  for (const Subject& subject : subjects) {
    const double seconds = Median(subject.seconds);
    const PageRun run = subject.pages.Run(0, 1);
    const double bytes = static_cast<double>(run.stored.Bytes()) * run.page_count;
    rows.push_back({{"format", subject.name},
                    {"tokens_per_s", run.tokens / seconds},
                    {"ns_per_token_per_kv_head", seconds * 1e9 / run.tokens / shape.kv_heads},
                    {"against_f16", Median(subject.against_f16)},
                    {"bytes_per_s", bytes / seconds},
                    {"of_read_bandwidth", bytes / seconds / bandwidth},
                    {"relative_error_against_reference", subject.error}});
  }
  return nlohmann::json{{"benchmark", "attend"},
                        {"backend", cpu.name},
                        {"threads", pool.threads()},
                        {"query_heads", shape.query_heads},
                        {"kv_heads", shape.kv_heads},
                        {"head_dim", shape.head_dim},
                        {"sequences", kSequences},
                        {"tokens", options.attend_tokens},
                        {"read_bandwidth_bytes_per_s", bandwidth},
                        {"rows", rows}};
}

}  // namespace strata::bench
