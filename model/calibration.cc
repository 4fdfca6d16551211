#include "model/calibration.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/half.h"
#include "base/status_macros.h"
#include "model/calibration_text.h"
#include "model/flat_kv.h"
#include "model/key_errors.h"

namespace strata {
namespace {

// A block for the sink and two to measure.
constexpr int32_t kMinTokens = 3 * kBlockTokens;

// F16 keeps 11 bits of what it stores, mean included, so a channel's spread is never taken to be
// less than a part in 2^10 of its size: equalizing such a channel would only amplify rounding.
constexpr double kMinRelativeVariance = 0x1p-20;

absl::StatusOr<std::vector<int32_t>> CalibrationTokens(const ModelConfig& config,
                                                       const Tokenizer& tokenizer) {
  STRATA_ASSIGN_OR_RETURN(const std::vector<TokenSpan> spans,
                          tokenizer.Encode(kCalibrationText, EncodeOptions{}));
  const size_t count = std::min<size_t>(
      {spans.size(), size_t{kCalibrationTokens}, static_cast<size_t>(config.context_length)});
  if (count < kMinTokens) {
    return absl::FailedPreconditionError(absl::StrCat("the basis needs a context of ", kMinTokens,
                                                      " tokens to be measured, this model has ",
                                                      count));
  }
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < count; ++i) tokens.push_back(spans[i].id);
  return tokens;
}

absl::Status CollectKeys(const ModelConfig& config, int32_t blocks, FlatKv* kv,
                         DeviceMemory* memory, BasisMoments* moments) {
  std::vector<std::byte> bytes(kv->format().BaseBytes());
  std::vector<float> k(size_t{kBlockTokens} * config.head_dim);
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    for (int32_t block = 1; block < blocks; ++block) {
      STRATA_RETURN_IF_ERROR(
          memory->Download(kv->Page(0, layer, block), bytes.size(), bytes.data()));
      for (int32_t head = 0; head < config.kv_heads; ++head) {
        const auto* page = reinterpret_cast<const Half*>(bytes.data() + kv->format().KHead(head));
        for (int32_t t = 0; t < kBlockTokens; ++t) {
          for (int32_t c = 0; c < config.head_dim; ++c) {
            k[t * config.head_dim + c] = HalfToFloat(page[KF16Index(config.head_dim, t, c)]);
          }
        }
        moments->AddKeys(layer, head, k.data());
      }
    }
  }
  return absl::OkStatus();
}

// The layer's queries of rows `first` on.
using TextObserver =
    std::function<void(int32_t layer, int32_t first, int32_t rows, const float* q)>;

// Fills sequence 0 of `kv` with the text.
absl::Status RunText(absl::Span<const int32_t> tokens, Transformer* transformer, FlatKv* kv,
                     const TextObserver& observe) {
  const auto count = static_cast<int32_t>(tokens.size());
  std::vector<int32_t> positions(count);
  for (int32_t i = 0; i < count; ++i) positions[i] = i;
  kv->Truncate(0, 0);
  for (int32_t first = 0; first < count;) {
    const int32_t rows = std::min(transformer->max_rows(), count - first);
    ForwardBatch batch;
    batch.tokens = tokens.subspan(first, rows);
    batch.positions = absl::MakeConstSpan(positions).subspan(first, rows);
    const FlatKv::Piece piece = {0, rows};
    kv->BeginStep({&piece, 1});
    STRATA_RETURN_IF_ERROR(transformer->Forward(
        batch, kv, nullptr, [&](int32_t layer, int32_t observed, const float* q) {
          observe(layer, first, observed, q);
        }));
    first += rows;
  }
  return absl::OkStatus();
}

}  // namespace

BasisMoments::BasisMoments(const KvGeometry& geometry)
    : geometry_(geometry),
      q_squares_(size_t{1} * geometry.layers * geometry.kv_heads * geometry.head_dim),
      k_variances_(q_squares_.size()),
      k_squares_(q_squares_.size()) {}

void BasisMoments::AddQueries(int32_t layer, int32_t query_heads, const float* q) {
  const int32_t group = query_heads / geometry_.kv_heads;
  for (int32_t head = 0; head < query_heads; ++head) {
    double* sums = q_squares_.data() + Index(layer, head / group);
    for (int32_t c = 0; c < geometry_.head_dim; ++c) {
      const double value = q[head * geometry_.head_dim + c];
      sums[c] += value * value;
    }
  }
}

void BasisMoments::AddKeys(int32_t layer, int32_t kv_head, const float* k) {
  const size_t index = Index(layer, kv_head);
  for (int32_t c = 0; c < geometry_.head_dim; ++c) {
    double sum = 0;
    double squares = 0;
    for (int32_t t = 0; t < kBlockTokens; ++t) {
      const double value = k[t * geometry_.head_dim + c];
      sum += value;
      squares += value * value;
    }
    k_squares_[index + c] += squares;
    k_variances_[index + c] += std::max(0.0, squares - sum * sum / kBlockTokens);
  }
}

void BasisMoments::HeadScales(size_t index, float* scales) const {
  const int32_t dim = geometry_.head_dim;
  std::vector<double> logs(dim);
  double mean = 0;
  int32_t measured = 0;
  for (int32_t c = 0; c < dim; ++c) {
    // Sums do for means, and the queries' 1/sqrt(head_dim) may stay: factors that all channels
    // share go with the geometric mean.
    const double variance =
        std::max(k_variances_[index + c], kMinRelativeVariance * k_squares_[index + c]);
    const double ratio = q_squares_[index + c] / variance;
    logs[c] = std::isfinite(ratio) && ratio > 0 ? std::log(ratio) / 4 : std::nan("");
    if (std::isnan(logs[c])) continue;
    mean += logs[c];
    ++measured;
  }
  if (measured > 0) mean /= measured;
  for (int32_t c = 0; c < dim; ++c) {
    const double scale = std::isnan(logs[c]) ? 1.0 : std::exp(logs[c] - mean);
    scales[c] = static_cast<float>(std::clamp<double>(scale, 1 / kMaxScale, kMaxScale));
  }
}

std::vector<float> BasisMoments::Scales() const {
  std::vector<float> scales(q_squares_.size());
  for (size_t index = 0; index < scales.size(); index += geometry_.head_dim) {
    HeadScales(index, scales.data() + index);
  }
  return scales;
}

absl::StatusOr<KvMeasurement> MeasureKv(const ModelConfig& config, const Tokenizer& tokenizer,
                                        const PageCodec& codec, Transformer* transformer) {
  STRATA_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, CalibrationTokens(config, tokenizer));
  const KvGeometry geometry = config.Geometry();
  STRATA_ASSIGN_OR_RETURN(
      const std::unique_ptr<FlatKv> kv,
      FlatKv::Create(geometry, 1, static_cast<int32_t>(tokens.size()), transformer->memory()));

  KvMeasurement measured = {KvBasis::Plain(geometry), {}};
  measured.basis.rotate_v = true;
  STRATA_RETURN_IF_ERROR(transformer->SetBasis(measured.basis));
  BasisMoments moments(geometry);
  const size_t q_width = size_t{1} * config.query_heads * config.head_dim;
  STRATA_RETURN_IF_ERROR(RunText(tokens, transformer, kv.get(),
                                 [&](int32_t layer, int32_t first, int32_t rows, const float* q) {
                                   for (int32_t r = std::max(0, kBlockTokens - first); r < rows;
                                        ++r) {
                                     moments.AddQueries(layer, config.query_heads, q + r * q_width);
                                   }
                                 }));
  const auto blocks = static_cast<int32_t>(tokens.size()) / kBlockTokens;
  STRATA_RETURN_IF_ERROR(CollectKeys(config, blocks, kv.get(), transformer->memory(), &moments));
  measured.basis.rotate_k = true;
  measured.basis.k_scale = moments.Scales();

  STRATA_RETURN_IF_ERROR(transformer->SetBasis(measured.basis));
  KeyErrors errors(config, blocks * kBlockTokens);
  STRATA_RETURN_IF_ERROR(RunText(tokens, transformer, kv.get(),
                                 [&](int32_t layer, int32_t first, int32_t rows, const float* q) {
                                   errors.AddQueries(layer, first, rows, q);
                                 }));
  STRATA_ASSIGN_OR_RETURN(measured.k_errors, errors.Measure(codec, kv.get()));
  return measured;
}

}  // namespace strata
