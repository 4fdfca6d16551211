#include "kernels/cuda/linear_cuda.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "cache/layout/geometry.h"
#include "kernels/cuda/linear_launch.h"
#include "kernels/cuda/matmul_launch.h"
#include "kernels/cuda/upload_ring.h"
#include "kernels/cuda/weights_cuda.h"

namespace strata::cuda {
namespace {

// What the small arrays of a step's layers take of a ring before they are read: ids, positions and
// targets of every row.
constexpr size_t kUploadBytesPerRow = 64;

class CudaLinear final : public LinearOps {
 public:
  explicit CudaLinear(std::shared_ptr<CudaDevice> device)
      : device_(std::move(device)), uploads_(device_) {}
  ~CudaLinear() override { device_->Synchronize().IgnoreError(); }  // its buffers may be in use

  absl::StatusOr<std::unique_ptr<WeightMatrix>> Prepare(
      absl::Span<const WeightSource> sources) override {
    STRATA_RETURN_IF_ERROR(ValidateSources(sources));
    if (!loading_.has_value()) loading_.emplace(device_);
    return CudaMatrix::Pack(sources, device_, &*loading_);
  }

  absl::Status Reserve(int32_t rows, int32_t in_features) override {
    // Weights are loaded by now; their way here is not needed any more.
    STRATA_RETURN_IF_ERROR(device_->Synchronize());
    loading_.reset();
    STRATA_RETURN_IF_ERROR(uploads_.Reserve(rows * kUploadBytesPerRow));
    STRATA_RETURN_IF_ERROR(Grow(ActivationPanelBytes(rows, in_features), &panel_));
    return Grow(AngleBytes(rows, kHeadDimMax), &angles_);
  }

  void Matmul(const WeightMatrix& w, const float* x, int32_t rows, const float* bias,
              bool accumulate, float* y) override {
    if (rows == 0) return;
    const auto& matrix = static_cast<const CudaMatrix&>(w);
    if (!Ready(Grow(ActivationPanelBytes(rows, matrix.in_features()), &panel_))) return;
    device_->Note(LaunchPrepareActivations(x, rows, matrix.in_features(), panel_.data(), stream()),
                  "LaunchPrepareActivations");
    for (const CudaMatrix::Segment& segment : matrix.segments()) {
      MatmulArgs args;
      args.weights = segment.weights;
      args.panel = panel_.data();
      args.rows = rows;
      args.bias = bias == nullptr ? nullptr : bias + segment.first_output;
      args.accumulate = accumulate;
      args.y = y + segment.first_output;
      args.y_stride = matrix.out_features();
      device_->Note(LaunchMatmul(args, stream()), "LaunchMatmul");
    }
  }

  void EmbedRows(const WeightMatrix& w, absl::Span<const int32_t> ids, float* out) override {
    // A step begins: frequencies may be another model's now, at the same address.
    positions_.clear();
    const auto& matrix = static_cast<const CudaMatrix&>(w);
    for (const int32_t id : ids) STRATA_CHECK(id >= 0 && id < matrix.out_features());
    const int32_t* on_device = Upload(ids);
    if (on_device == nullptr) return;
    for (const CudaMatrix::Segment& segment : matrix.segments()) {
      device_->Note(LaunchEmbedRows(segment.weights, segment.first_output, on_device,
                                    static_cast<int32_t>(ids.size()), out, stream()),
                    "LaunchEmbedRows");
    }
  }

  void GatherRows(const float* x, absl::Span<const int32_t> rows, int32_t width,
                  float* y) override {
    for (const int32_t row : rows) STRATA_CHECK(row >= 0);
    const int32_t* on_device = Upload(rows);
    if (on_device == nullptr) return;
    device_->Note(
        LaunchGatherRows(x, on_device, static_cast<int32_t>(rows.size()), width, y, stream()),
        "LaunchGatherRows");
  }

  void RmsNorm(const float* x, const float* weight, int32_t rows, int32_t width, float epsilon,
               float* y) override {
    device_->Note(LaunchRmsNorm(x, weight, rows, width, epsilon, y, stream()), "LaunchRmsNorm");
  }

  void SwiGlu(const float* gate_up, int32_t rows, int32_t width, float* y) override {
    device_->Note(LaunchSwiGlu(gate_up, rows, width, y, stream()), "LaunchSwiGlu");
  }

  void RopeAppend(const RopeAppendArgs& args) override;

  void UnrotateHeads(int32_t rows, int32_t heads, int32_t head_dim, float* o) override {
    device_->Note(LaunchUnrotateHeads(rows, heads, head_dim, o, stream()), "LaunchUnrotateHeads");
  }

 private:
  cudaStream_t stream() const { return device_->stream().get(); }
  static size_t AngleBytes(int32_t rows, int32_t rope_dim) {
    return sizeof(float) * rows * rope_dim;
  }

  // Notes an error. Whether the call may go on.
  bool Ready(absl::Status status) {
    const bool ok = status.ok();
    if (!ok) device_->Note(std::move(status));
    return ok;
  }

  // Null for no values, and for an error, which is noted.
  const int32_t* Upload(absl::Span<const int32_t> values) {
    if (values.empty()) return nullptr;
    auto put = uploads_.Put(values);
    return Ready(put.status()) ? *put : nullptr;
  }

  absl::Status Grow(size_t bytes, Buffer* buffer) {
    if (buffer->size() >= bytes) return absl::OkStatus();
    STRATA_RETURN_IF_ERROR(device_->Synchronize());
    device_->NoteMoved();
    *buffer = Buffer();
    STRATA_ASSIGN_OR_RETURN(*buffer, CudaDevice::AllocateDevice(device_, bytes));
    return absl::OkStatus();
  }

  absl::Status UpdateAngles(const RopeAppendArgs& args);

  const std::shared_ptr<CudaDevice> device_;
  UploadRing uploads_;
  std::optional<UploadRing> loading_;  // of weights, until Reserve
  Buffer panel_;                       // activations of the product in progress
  Buffer angles_;                      // of the positions below: the same for all layers of a step
  std::vector<int32_t> positions_;
  RopeParams rope_;
};

absl::Status CudaLinear::UpdateAngles(const RopeAppendArgs& args) {
  const RopeParams& rope = args.rope;
  const absl::Span<const int32_t> positions(args.positions, args.rows);
  if (rope.dim == rope_.dim && rope.frequency == rope_.frequency &&
      rope.magnitude == rope_.magnitude && absl::MakeConstSpan(positions_) == positions) {
    return absl::OkStatus();
  }
  STRATA_RETURN_IF_ERROR(Grow(AngleBytes(args.rows, rope.dim), &angles_));
  STRATA_ASSIGN_OR_RETURN(const int32_t* on_device, uploads_.Put(positions));
  rope_ = rope;
  positions_.assign(positions.begin(), positions.end());
  device_->Note(LaunchRopeAngles(rope, on_device, args.rows,
                                 reinterpret_cast<float*>(angles_.data()), stream()),
                "LaunchRopeAngles");
  return absl::OkStatus();
}

void CudaLinear::RopeAppend(const RopeAppendArgs& args) {
  STRATA_CHECK(KvGeometry({1, args.kv_heads, args.head_dim}).Valid());
  STRATA_CHECK(args.query_heads > 0 && args.query_heads % args.kv_heads == 0);
  STRATA_CHECK(args.rope.dim >= 0 && args.rope.dim <= args.head_dim && args.rope.dim % 2 == 0);
  if (args.rows == 0) return;
  const absl::Span<const AppendTarget> targets(args.targets, args.rows);
  for (const AppendTarget& target : targets) {
    STRATA_CHECK(target.page != nullptr && target.token >= 0 && target.token < kBlockTokens);
  }
  if (!Ready(UpdateAngles(args))) return;
  auto put = uploads_.Put(targets);
  if (!Ready(put.status())) return;
  RopeAppendArgs on_device = args;
  on_device.targets = *put;
  on_device.positions = nullptr;
  device_->Note(
      LaunchRopeAppend(on_device, reinterpret_cast<const float*>(angles_.data()), stream()),
      "LaunchRopeAppend");
}

}  // namespace

std::unique_ptr<LinearOps> MakeCudaLinear(std::shared_ptr<CudaDevice> device) {
  return std::make_unique<CudaLinear>(std::move(device));
}

}  // namespace strata::cuda
