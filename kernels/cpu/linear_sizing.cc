#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/backend.h"
#include "kernels/cpu/weights_packed.h"

namespace strata {
namespace {

// Measures, and computes nothing.
class SizingLinear final : public LinearOps {
 public:
  absl::StatusOr<std::unique_ptr<WeightMatrix>> Prepare(
      absl::Span<const WeightSource> sources) override {
    STRATA_RETURN_IF_ERROR(ValidateSources(sources));
    return PackedMatrix::Measure(sources);
  }
  void Matmul(const WeightMatrix&, const float*, int32_t, const float*, bool, float*) override {
    STRATA_CHECK(false);
  }
  void EmbedRows(const WeightMatrix&, absl::Span<const int32_t>, float*) override {
    STRATA_CHECK(false);
  }
  void GatherRows(const float*, absl::Span<const int32_t>, int32_t, float*) override {
    STRATA_CHECK(false);
  }
  void RmsNorm(const float*, const float*, int32_t, int32_t, float, float*) override {
    STRATA_CHECK(false);
  }
  void SwiGlu(const float*, int32_t, int32_t, float*) override { STRATA_CHECK(false); }
  void RopeAppend(const RopeAppendArgs&) override { STRATA_CHECK(false); }
  void UnrotateHeads(int32_t, int32_t, int32_t, float*) override { STRATA_CHECK(false); }
};

}  // namespace

std::unique_ptr<LinearOps> CreateSizingLinear() { return std::make_unique<SizingLinear>(); }

}  // namespace strata
