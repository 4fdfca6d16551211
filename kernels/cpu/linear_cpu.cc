#include "kernels/cpu/linear_cpu.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/aligned_buffer.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "cache/layout/page_format.h"
#include "kernels/cpu/linear_rope.h"
#include "kernels/cpu/linear_table-inl.h"
#include "kernels/cpu/weights_packed.h"

namespace strata {
namespace {

// Rows that the small operations take as one task. Fewer rows than two tasks are the caller's
// alone: a loop over threads costs about as much as eight rows of a small model.
constexpr int32_t kRowsPerTask = 8;

// Tasks a thread that a product is split into: enough for threads to even out what the other
// processes of the machine take from them, few enough to keep streams of weights long.
constexpr int32_t kTasksPerThread = 4;
// With many rows a task is computing, not streaming, and takes long: shorter ones end together.
constexpr int32_t kManyRows = 16;
constexpr int32_t kTasksPerThreadOfManyRows = 16;

const LinearTable& TableOf(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return kLinearTableAvx512;
    case Isa::kAvx2:
      return kLinearTableAvx2;
    case Isa::kScalar:
      break;
  }
  return kLinearTableScalar;
}

void Grow(size_t bytes, AlignedBuffer* buffer) {
  if (buffer->size() >= bytes) return;
  absl::StatusOr<AlignedBuffer> larger = AlignedBuffer::Allocate(bytes);
  STRATA_CHECK(larger.ok());
  *buffer = *std::move(larger);
}

class CpuLinear : public LinearOps {
 public:
  CpuLinear(const LinearTable& table, ThreadPool* pool) : table_(table), pool_(pool) {}

  absl::StatusOr<std::unique_ptr<WeightMatrix>> Prepare(
      absl::Span<const WeightSource> sources) override {
    STRATA_RETURN_IF_ERROR(ValidateSources(sources));
    return PackedMatrix::Pack(sources, pool_, &arena_);
  }

  void Matmul(const WeightMatrix& w, const float* x, int32_t rows, const float* bias,
              bool accumulate, float* y) override {
    if (rows == 0) return;
    const auto& matrix = static_cast<const PackedMatrix&>(w);
    FillPanels(matrix, x, rows);
    MatmulArgs args;
    args.in_features = matrix.in_features();
    args.rows = rows;
    args.bias = bias;
    args.accumulate = accumulate;
    args.y = y;
    args.y_stride = matrix.out_features();
    const int64_t tiles = matrix.tile_count();
    const int64_t share = rows < kManyRows ? kTasksPerThread : kTasksPerThreadOfManyRows;
    const int64_t tasks = std::min<int64_t>(tiles, share * pool_->threads());
    pool_->ParallelFor(tasks, [&](int64_t task, int) {
      MultiplyTiles(matrix, args, static_cast<int32_t>(tiles * task / tasks),
                    static_cast<int32_t>(tiles * (task + 1) / tasks));
    });
  }

  void EmbedRows(const WeightMatrix& w, absl::Span<const int32_t> ids, float* out) override {
    const auto& matrix = static_cast<const PackedMatrix&>(w);
    const auto rows = static_cast<int32_t>(ids.size());
    ForRows(rows, [&](int32_t first, int32_t last) {
      for (int32_t i = first; i < last; ++i) {
        matrix.DequantizeRow(ids[i], out + size_t{1} * i * matrix.in_features());
      }
    });
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
    ForRows(rows, [&](int32_t first, int32_t last) {
      for (int32_t r = first; r < last; ++r) {
        const size_t offset = size_t{1} * r * width;
        table_.rms_norm(x + offset, weight, width, epsilon, y + offset);
      }
    });
  }

  void SwiGlu(const float* gate_up, int32_t rows, int32_t width, float* y) override {
    ForRows(rows, [&](int32_t first, int32_t last) {
      for (int32_t r = first; r < last; ++r) {
        table_.swiglu(gate_up + size_t{2} * r * width, width, y + size_t{1} * r * width);
      }
    });
  }

  void RopeAppend(const RopeAppendArgs& args) override {
    STRATA_CHECK(KvGeometry({1, args.kv_heads, args.head_dim}).Valid());
    STRATA_CHECK(args.query_heads > 0 && args.query_heads % args.kv_heads == 0);
    STRATA_CHECK(args.rope.dim >= 0 && args.rope.dim <= args.head_dim && args.rope.dim % 2 == 0);
    angles_.Update(args.rope, args.positions, args.rows, args.head_dim);
    ForRows(args.rows, [&](int32_t first, int32_t last) {
      for (int32_t row = first; row < last; ++row) RopeAppendRow(args, row);
    });
  }

  void UnrotateHeads(int32_t rows, int32_t heads, int32_t head_dim, float* o) override {
    STRATA_CHECK(KvGeometry({1, heads, head_dim}).Valid());
    ForRows(rows, [&](int32_t first, int32_t last) {
      // H is symmetric, so H^T is H.
      table_.hadamard(int64_t{1} * (last - first) * heads, head_dim,
                      o + size_t{1} * first * heads * head_dim);
    });
  }

 private:
  // Calls body(first row, last row) over ranges that cover [0, rows).
  template <typename Body>
  void ForRows(int32_t rows, const Body& body) {
    if (rows < 2 * kRowsPerTask) {
      body(0, rows);
      return;
    }
    pool_->ParallelFor((rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) {
      const auto first = static_cast<int32_t>(task) * kRowsPerTask;
      body(first, std::min(rows, first + kRowsPerTask));
    });
  }

  // Lays the activations out for the types of weights in `matrix`.
  void FillPanels(const PackedMatrix& matrix, const float* x, int32_t rows) {
    bool quantized = false, plain = false;
    for (const PackedSegment& segment : matrix.segments()) {
      (segment.plain() ? plain : quantized) = true;
    }
    if (quantized) FillPanel(x, matrix.in_features(), rows, kQuantizedBytes, &quantized_);
    if (plain) FillPanel(x, matrix.in_features(), rows, kPlainBytes, &plain_);
  }

  void FillPanel(const float* x, int32_t in_features, int32_t rows, int32_t record_bytes,
                 AlignedBuffer* panel) {
    const size_t records = (size_t{1} * in_features + kGroupInputs - 1) / kGroupInputs;
    Grow(records * rows * record_bytes, panel);
    ForRows(rows, [&](int32_t first, int32_t last) {
      PanelArgs args;
      args.x = x;
      args.in_features = in_features;
      args.rows = rows;
      args.first_row = first;
      args.last_row = last;
      args.panel = reinterpret_cast<uint8_t*>(panel->data());
      (panel == &plain_ ? table_.copy_plain : table_.quantize)(args);
    });
  }

  // Tiles [first, last) of the matrix, segment by segment.
  void MultiplyTiles(const PackedMatrix& matrix, MatmulArgs args, int32_t first, int32_t last) {
    const float* bias = args.bias;
    float* y = args.y;
    for (const PackedSegment& segment : matrix.segments()) {
      args.first_tile = std::max(first - segment.first_tile, 0);
      args.last_tile = std::min(last - segment.first_tile, segment.tile_count());
      if (args.first_tile >= args.last_tile) continue;
      args.tiles = reinterpret_cast<const uint8_t*>(segment.tiles);
      args.tile_bytes = segment.tile_bytes;
      args.out_features = segment.outputs;
      args.panel = reinterpret_cast<const uint8_t*>((segment.plain() ? plain_ : quantized_).data());
      args.bias = bias == nullptr ? nullptr : bias + segment.first_output;
      args.y = y + segment.first_output;
      table_.matmul[static_cast<int>(segment.type)](args);
    }
  }

  void RopeAppendRow(const RopeAppendArgs& args, int32_t row) {
    const int32_t dim = args.head_dim;
    const AppendTarget& target = args.targets[row];
    STRATA_CHECK(target.page != nullptr && target.token >= 0 && target.token < kBlockTokens);
    static_assert(KF16Index(64, 5, 1) - KF16Index(64, 5, 0) == 16);
    static_assert(VF16Index(64, 5, 1) - VF16Index(64, 5, 0) == 1);
    const PageFormat page{KvKind::kF16, KvKind::kF16, args.kv_heads, dim};
    RopeRowArgs one;
    one.qkv = args.qkv + size_t{1} * row * (args.query_heads + 2 * args.kv_heads) * dim;
    one.query_heads = args.query_heads;
    one.kv_heads = args.kv_heads;
    one.head_dim = dim;
    one.q_norm = args.q_norm;
    one.k_norm = args.k_norm;
    one.norm_epsilon = args.norm_epsilon;
    one.rope_dim = args.rope.dim;
    one.halves = args.rope.pairing == RopeParams::Pairing::kHalves;
    one.cosine = angles_.Cosine(row);
    one.sine = angles_.Sine(row);
    one.k_scale = args.k_scale;
    one.rotate_k = args.rotate_k;
    one.rotate_v = args.rotate_v;
    one.q_factor = 1.0f / std::sqrt(static_cast<float>(dim));
    one.q = args.q + size_t{1} * row * args.query_heads * dim;
    one.k =
        reinterpret_cast<uint16_t*>(target.page + page.KHead(0)) + KF16Index(dim, target.token, 0);
    one.v =
        reinterpret_cast<uint16_t*>(target.page + page.VHead(0)) + VF16Index(dim, target.token, 0);
    one.k_stride = page.KHeadBytes() / sizeof(uint16_t);
    one.v_stride = page.VHeadBytes() / sizeof(uint16_t);
    table_.rope_row(one);
  }

  const LinearTable& table_;
  ThreadPool* const pool_;
  WeightArena arena_;
  RopeAngles angles_;
  AlignedBuffer quantized_;  // panels of the product in progress
  AlignedBuffer plain_;
};

}  // namespace

std::unique_ptr<LinearOps> MakeCpuLinear(Isa isa, ThreadPool* pool) {
  return std::make_unique<CpuLinear>(TableOf(isa), pool);
}

}  // namespace strata
