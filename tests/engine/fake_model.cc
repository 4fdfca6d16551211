#include "tests/engine/fake_model.h"

#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/half.h"
#include "base/status_macros.h"

namespace strata {
namespace {

constexpr absl::string_view kCharacters =
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

uint64_t Mix(uint64_t hash, uint64_t value) {
  uint64_t x = hash + 0x9e3779b97f4a7c15ULL * (value + 1);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Logits in [0, 8) with a clear winner that depends on every token before.
void FillLogits(uint64_t hash, float* logits) {
  for (int32_t id = 0; id < FakeTokenizer::kVocab; ++id) {
    logits[id] = static_cast<float>(Mix(hash, id) >> 40) * 0x1p-21f;
  }
}

int32_t Best(const float* logits) {
  int32_t best = 0;
  for (int32_t id = 1; id < FakeTokenizer::kVocab; ++id) {
    if (logits[id] > logits[best]) best = id;
  }
  return best;
}

// Both exact in binary16: ids below 64, positions below 4096 as two digits of base 64.
constexpr int32_t kDigit = 64;

void Write(const AppendTarget& target, int32_t head_dim, int32_t id, int32_t position) {
  Half* page = reinterpret_cast<Half*>(target.page);
  const int32_t v = kBlockTokens * head_dim;  // one KV head: V follows K
  page[KF16Index(head_dim, target.token, 0)] = FloatToHalf(static_cast<float>(id));
  page[v + VF16Index(head_dim, target.token, 0)] =
      FloatToHalf(static_cast<float>(position / kDigit));
  page[v + VF16Index(head_dim, target.token, 1)] =
      FloatToHalf(static_cast<float>(position % kDigit));
}

// Folds what a page says of one token.
uint64_t ReadInto(uint64_t hash, const std::byte* base, int32_t head_dim, int32_t token) {
  const Half* page = reinterpret_cast<const Half*>(base);
  const int32_t v = kBlockTokens * head_dim;
  hash = Mix(hash, static_cast<uint64_t>(HalfToFloat(page[KF16Index(head_dim, token, 0)])));
  const float high = HalfToFloat(page[v + VF16Index(head_dim, token, 0)]);
  const float low = HalfToFloat(page[v + VF16Index(head_dim, token, 1)]);
  return Mix(hash, static_cast<uint64_t>(high * kDigit + low));
}

// The hash of tokens 0..position of one sequence in one layer.
uint64_t HashContext(const AttentionSequence& sequence, int32_t head_dim, int32_t position) {
  uint64_t hash = 0;
  int32_t expected = 0;
  for (const PageRun& run : sequence.runs) {
    STRATA_CHECK(run.first_block * kBlockTokens == expected);
    for (int32_t t = 0; t < run.tokens && expected <= position; ++t, ++expected) {
      hash = ReadInto(hash, run.pages[t / kBlockTokens].base, head_dim, t % kBlockTokens);
    }
  }
  STRATA_CHECK(expected == position + 1);
  return hash;
}

}  // namespace

absl::StatusOr<std::vector<TokenSpan>> FakeTokenizer::Encode(absl::string_view text,
                                                             const EncodeOptions& options) const {
  std::vector<TokenSpan> spans;
  for (uint32_t i = 0; i < text.size(); ++i) {
    const size_t at = kCharacters.find(text[i]);
    if (at == absl::string_view::npos) return absl::InvalidArgumentError("no such character");
    spans.push_back({static_cast<int32_t>(at) + 2, i, i + 1});
  }
  return spans;
}

std::string FakeTokenizer::TokenBytes(int32_t id, bool show_special) const {
  if (id < 0 || id >= kVocab) return "";
  if (IsSpecial(id)) return show_special ? (id == kEos ? "</s>" : "<s>") : "";
  return std::string(1, kCharacters[static_cast<size_t>(id - 2)]);
}

std::string FakeTokenizer::Decode(const std::vector<int32_t>& ids, bool show_special) const {
  std::string text;
  for (const int32_t id : ids) text += TokenBytes(id, show_special);
  return text;
}

FakeModel::FakeModel() {
  config_.architecture = "fake";
  config_.layers = 2;
  config_.query_heads = config_.kv_heads = 1;
  config_.head_dim = 16;
  config_.width = 16;
  config_.vocab_size = FakeTokenizer::kVocab;
  config_.context_length = kContext;
  basis_ = KvBasis::Plain(config_.Geometry());
}

absl::Status FakeModel::Forward(const ForwardBatch& batch, KvStep* kv, float* logits) {
  if (before_forward) STRATA_RETURN_IF_ERROR(before_forward(batch));
  std::vector<uint64_t> hashes(batch.logit_rows.size(), 0);
  for (int32_t layer = 0; layer < config_.layers; ++layer) {
    STRATA_ASSIGN_OR_RETURN(const LayerKv pages, kv->BeginLayer(layer));
    STRATA_CHECK(pages.targets.size() == batch.tokens.size());
    for (size_t row = 0; row < batch.tokens.size(); ++row) {
      Write(pages.targets[row], config_.head_dim, batch.tokens[row], batch.positions[row]);
    }
    size_t wanted = 0;
    for (const AttentionSequence& sequence : pages.sequences) {
      for (; wanted < hashes.size(); ++wanted) {
        const int32_t row = batch.logit_rows[wanted] - sequence.first_row;
        if (row >= sequence.rows) break;
        hashes[wanted] = Mix(
            hashes[wanted], HashContext(sequence, config_.head_dim, sequence.first_position + row));
      }
    }
    STRATA_CHECK(wanted == hashes.size());
  }
  for (size_t i = 0; i < hashes.size(); ++i) {
    FillLogits(hashes[i], logits + i * FakeTokenizer::kVocab);
  }
  return absl::OkStatus();
}

std::vector<int32_t> FakeModel::Continue(std::vector<int32_t> tokens, int32_t count) {
  std::vector<int32_t> output;
  uint64_t hash = 0;
  uint64_t position = 0;
  while (static_cast<int32_t>(output.size()) < count) {
    for (; position < tokens.size(); ++position) {
      hash = Mix(Mix(hash, static_cast<uint64_t>(tokens[position])), position);
    }
    float logits[FakeTokenizer::kVocab];
    FillLogits(Mix(Mix(0, hash), hash), logits);  // two layers
    output.push_back(Best(logits));
    tokens.push_back(output.back());
  }
  return output;
}

}  // namespace strata
