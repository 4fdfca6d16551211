#include "kernels/reference/attention_reference.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"

namespace strata {
namespace {

// One decoded page: floats [kv_heads][64][head_dim] and which tokens count.
struct DecodedPage {
  std::vector<float> k, v;
  int32_t position = 0;
  int32_t tokens = 0;
  uint64_t skip = 0;
};

std::vector<DecodedPage> DecodeRuns(absl::Span<const PageRun> runs) {
  std::vector<DecodedPage> pages;
  for (const PageRun& run : runs) {
    for (int32_t i = 0; i < run.page_count; ++i) {
      const KvPageView& view = run.pages[i];
      DecodedPage& page = pages.emplace_back();
      const size_t values = size_t{kBlockTokens} * run.stored.kv_heads * run.stored.head_dim;
      page.k.resize(values);
      page.v.resize(values);
      PageCodec::Decode(run.stored, run.read_k, run.read_v, view.base, view.refine, page.k.data(),
                        page.v.data());
      page.position = (run.first_block + i) * kBlockTokens;
      page.tokens = std::min(kBlockTokens, run.tokens - i * kBlockTokens);
      page.skip = view.skip;
    }
  }
  return pages;
}

class ReferenceAttention final : public AttentionBackend {
 public:
  void Attend(const AttentionShape& shape, const float* q,
              absl::Span<const AttentionSequence> sequences, PartialStates* states) override;

 private:
  struct Query {
    const float* q;
    int32_t position;
    int32_t kv_head;
    int32_t head_dim;
  };
  // Folds the pages into one state: running maximum, one token after the other.
  static void AttendQuery(const Query& query, const std::vector<DecodedPage>& pages, float* o,
                          float* m, float* l);
};

void ReferenceAttention::AttendQuery(const Query& query, const std::vector<DecodedPage>& pages,
                                     float* o, float* m, float* l) {
  const int32_t dim = query.head_dim;
  std::vector<double> sum(o, o + dim);
  double max = *m;
  double weights = *l;
  for (const DecodedPage& page : pages) {
    for (int32_t t = 0; t < page.tokens; ++t) {
      if (page.position + t > query.position || ((page.skip >> t) & 1) != 0) continue;
      const size_t at = (size_t{1} * query.kv_head * kBlockTokens + t) * dim;
      double score = 0;
      for (int32_t c = 0; c < dim; ++c) {
        score += static_cast<double>(query.q[c]) * static_cast<double>(page.k[at + c]);
      }
      if (score > max) {
        const double keep = std::exp(max - score);
        for (double& x : sum) x *= keep;
        weights *= keep;
        max = score;
      }
      const double p = std::exp(score - max);
      weights += p;
      for (int32_t c = 0; c < dim; ++c) sum[c] += p * static_cast<double>(page.v[at + c]);
    }
  }
  *m = static_cast<float>(max);
  *l = static_cast<float>(weights);
  for (int32_t c = 0; c < dim; ++c) o[c] = static_cast<float>(sum[c]);
}

void ReferenceAttention::Attend(const AttentionShape& shape, const float* q,
                                absl::Span<const AttentionSequence> sequences,
                                PartialStates* states) {
  STRATA_CHECK(states->heads == shape.query_heads && states->head_dim == shape.head_dim);
  const int32_t group = shape.query_heads / shape.kv_heads;
  for (const AttentionSequence& sequence : sequences) {
    const std::vector<DecodedPage> pages = DecodeRuns(sequence.runs);
    for (int32_t r = 0; r < sequence.rows; ++r) {
      for (int32_t h = 0; h < shape.query_heads; ++h) {
        const size_t state = size_t{1} * (sequence.first_row + r) * shape.query_heads + h;
        const size_t at = state * shape.head_dim;
        AttendQuery({q + at, sequence.first_position + r, h / group, shape.head_dim}, pages,
                    &states->o[at], &states->m[state], &states->l[state]);
      }
    }
  }
}

}  // namespace

std::unique_ptr<AttentionBackend> MakeReferenceAttention() {
  return std::make_unique<ReferenceAttention>();
}

}  // namespace strata
