#include "kernels/reference/linear_reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/check.h"
#include "base/half.h"
#include "base/status_macros.h"
#include "cache/layout/kv_basis.h"
#include "kernels/reference/linear_dequantize.h"

namespace strata {
namespace {

class ReferenceMatrix : public WeightMatrix {
 public:
  ReferenceMatrix(int32_t out_features, int32_t in_features, AlignedBuffer values)
      : out_features_(out_features), in_features_(in_features), values_(std::move(values)) {}

  int32_t out_features() const override { return out_features_; }
  int32_t in_features() const override { return in_features_; }
  size_t bytes() const override { return values_.size(); }
  const float* Row(int32_t i) const {
    return reinterpret_cast<const float*>(values_.data()) + size_t{1} * i * in_features_;
  }

 private:
  int32_t out_features_;
  int32_t in_features_;
  AlignedBuffer values_;
};

// Eight interleaved partial sums, so that the compiler may use vectors without reordering.
double Dot(const float* a, const float* b, int32_t n) {
  double sums[8] = {};
  int32_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; ++j) {
      sums[j] += static_cast<double>(a[i + j]) * static_cast<double>(b[i + j]);
    }
  }
  for (; i < n; ++i) sums[0] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  double sum = 0;
  for (double s : sums) sum += s;
  return sum;
}

double InverseRms(const float* x, int32_t width, float epsilon) {
  double sum = 0;
  for (int32_t i = 0; i < width; ++i) sum += static_cast<double>(x[i]) * x[i];
  return 1.0 / std::sqrt(sum / width + static_cast<double>(epsilon));
}

using Head = std::vector<double>;

Head ReadHead(const float* x, const float* norm, const RopeAppendArgs& args) {
  Head head(x, x + args.head_dim);
  if (norm == nullptr) return head;
  const double inverse = InverseRms(x, args.head_dim, args.norm_epsilon);
  for (int32_t i = 0; i < args.head_dim; ++i) head[i] *= inverse * norm[i];
  return head;
}

void Rotate(const RopeParams& rope, int32_t position, Head* head) {
  const int32_t pairs = rope.dim / 2;
  for (int32_t i = 0; i < pairs; ++i) {
    const bool halves = rope.pairing == RopeParams::Pairing::kHalves;
    double& a = (*head)[halves ? i : 2 * i];
    double& b = (*head)[halves ? i + pairs : 2 * i + 1];
    const double angle = static_cast<double>(position) * rope.frequency[i];
    const double c = std::cos(angle) * rope.magnitude, s = std::sin(angle) * rope.magnitude;
    const double x = a, y = b;
    a = x * c - y * s;
    b = x * s + y * c;
  }
}

// The Hadamard matrix of a block by its definition: (-1)^popcount(i & j) / sqrt(block).
void Hadamard(Head* head) {
  const int32_t dim = static_cast<int32_t>(head->size());
  const int32_t block = KvBasis::HadamardBlock(dim);
  const Head x = *head;
  for (int32_t i = 0; i < dim; ++i) {
    const int32_t first = i / block * block;
    double sum = 0;
    for (int32_t j = 0; j < block; ++j) {
      const bool negative = (std::popcount(static_cast<uint32_t>((i - first) & j)) & 1) != 0;
      sum += negative ? -x[first + j] : x[first + j];
    }
    (*head)[i] = sum / std::sqrt(static_cast<double>(block));
  }
}

void AppendRow(const RopeAppendArgs& args, int32_t row) {
  const int32_t dim = args.head_dim;
  const int32_t heads = args.query_heads + 2 * args.kv_heads;
  const float* qkv = args.qkv + size_t{1} * row * heads * dim;
  const int32_t group = args.query_heads / args.kv_heads;
  const PageFormat page{KvKind::kF16, KvKind::kF16, args.kv_heads, dim};
  const AppendTarget& target = args.targets[row];

  for (int32_t h = 0; h < args.query_heads; ++h) {
    Head head = ReadHead(qkv + size_t{1} * h * dim, args.q_norm, args);
    Rotate(args.rope, args.positions[row], &head);
    if (args.k_scale != nullptr) {
      for (int32_t i = 0; i < dim; ++i) head[i] /= args.k_scale[h / group * dim + i];
    }
    if (args.rotate_k) Hadamard(&head);
    float* q = args.q + (size_t{1} * row * args.query_heads + h) * dim;
    for (int32_t i = 0; i < dim; ++i) {
      q[i] = static_cast<float>(head[i] / std::sqrt(static_cast<double>(dim)));
    }
  }
  for (int32_t h = 0; h < args.kv_heads; ++h) {
    Head head = ReadHead(qkv + size_t{1} * (args.query_heads + h) * dim, args.k_norm, args);
    Rotate(args.rope, args.positions[row], &head);
    if (args.k_scale != nullptr) {
      for (int32_t i = 0; i < dim; ++i) head[i] *= args.k_scale[h * dim + i];
    }
    if (args.rotate_k) Hadamard(&head);
    auto* k = reinterpret_cast<Half*>(target.page + page.KHead(h));
    for (int32_t i = 0; i < dim; ++i) {
      k[KF16Index(dim, target.token, i)] = FloatToHalf(static_cast<float>(head[i]));
    }
  }
  for (int32_t h = 0; h < args.kv_heads; ++h) {
    Head head =
        ReadHead(qkv + size_t{1} * (args.query_heads + args.kv_heads + h) * dim, nullptr, args);
    if (args.rotate_v) Hadamard(&head);
    auto* v = reinterpret_cast<Half*>(target.page + page.VHead(h));
    for (int32_t i = 0; i < dim; ++i) {
      v[VF16Index(dim, target.token, i)] = FloatToHalf(static_cast<float>(head[i]));
    }
  }
}

class ReferenceLinear : public LinearOps {
 public:
  absl::StatusOr<std::unique_ptr<WeightMatrix>> Prepare(
      absl::Span<const WeightSource> sources) override {
    STRATA_RETURN_IF_ERROR(ValidateSources(sources));
    const int32_t in_features = sources[0].in_features;
    int32_t out_features = 0;
    for (const WeightSource& source : sources) out_features += source.out_features;
    STRATA_ASSIGN_OR_RETURN(
        AlignedBuffer buffer,
        AlignedBuffer::Allocate(sizeof(float) * size_t{1} * out_features * in_features));
    auto* out = reinterpret_cast<float*>(buffer.data());
    for (const WeightSource& source : sources) {
      const size_t row_bytes = RowBytes(source.type, in_features);
      for (int32_t i = 0; i < source.out_features; ++i, out += in_features) {
        DequantizeRow(source.type, source.data + row_bytes * i, in_features, out);
      }
    }
    return std::make_unique<ReferenceMatrix>(out_features, in_features, std::move(buffer));
  }

  void Matmul(const WeightMatrix& w, const float* x, int32_t rows, const float* bias,
              bool accumulate, float* y) override {
    const auto& matrix = static_cast<const ReferenceMatrix&>(w);
    const int32_t in = w.in_features(), out = w.out_features();
    for (int32_t o = 0; o < out; ++o) {
      for (int32_t r = 0; r < rows; ++r) {
        double sum = Dot(matrix.Row(o), x + size_t{1} * r * in, in);
        if (bias != nullptr) sum += bias[o];
        float& result = y[size_t{1} * r * out + o];
        result = static_cast<float>(accumulate ? result + sum : sum);
      }
    }
  }

  void EmbedRows(const WeightMatrix& w, absl::Span<const int32_t> ids, float* out) override {
    const auto& matrix = static_cast<const ReferenceMatrix&>(w);
    const int32_t in = w.in_features();
    for (size_t i = 0; i < ids.size(); ++i) {
      STRATA_CHECK(ids[i] >= 0 && ids[i] < w.out_features());
      const float* row = matrix.Row(ids[i]);
      std::copy(row, row + in, out + i * in);
    }
  }

  void GatherRows(const float* x, absl::Span<const int32_t> rows, int32_t width,
                  float* y) override {
    for (const int32_t row : rows) {
      STRATA_CHECK(row >= 0);
      std::copy_n(x + size_t{1} * row * width, width, y);
      y += width;
    }
  }

  void RmsNorm(const float* x, const float* weight, int32_t rows, int32_t width, float epsilon,
               float* y) override {
    for (int32_t r = 0; r < rows; ++r, x += width, y += width) {
      const double inverse = InverseRms(x, width, epsilon);
      for (int32_t i = 0; i < width; ++i) y[i] = static_cast<float>(x[i] * inverse * weight[i]);
    }
  }

  void SwiGlu(const float* gate_up, int32_t rows, int32_t width, float* y) override {
    for (int32_t r = 0; r < rows; ++r, gate_up += 2 * width, y += width) {
      for (int32_t i = 0; i < width; ++i) {
        const double gate = gate_up[i];
        y[i] = static_cast<float>(gate / (1.0 + std::exp(-gate)) * gate_up[width + i]);
      }
    }
  }

  void RopeAppend(const RopeAppendArgs& args) override {
    for (int32_t row = 0; row < args.rows; ++row) AppendRow(args, row);
  }

  void UnrotateHeads(int32_t rows, int32_t heads, int32_t head_dim, float* o) override {
    const int64_t count = int64_t{1} * rows * heads;
    for (int64_t i = 0; i < count; ++i, o += head_dim) {
      Head head(o, o + head_dim);
      Hadamard(&head);  // symmetric: H^T = H
      for (int32_t c = 0; c < head_dim; ++c) o[c] = static_cast<float>(head[c]);
    }
  }
};

}  // namespace

std::unique_ptr<LinearOps> MakeReferenceLinear() { return std::make_unique<ReferenceLinear>(); }

}  // namespace strata
