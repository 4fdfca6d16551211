#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/backend.h"
#include "kernels/cpu/attention_cpu.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/linear_cpu.h"

namespace strata {
namespace {

constexpr int kThreadsMax = 1024;

}  // namespace

absl::StatusOr<Backend> CreateCpuBackend(const CpuBackendOptions& options) {
  if (options.threads < 0 || options.threads > kThreadsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.threads, " threads; 0 to ", kThreadsMax, " allowed"));
  }
  STRATA_ASSIGN_OR_RETURN(const Isa isa, ChooseIsa(options.force_isa));
  Backend backend;
  backend.name = absl::StrCat("cpu/", IsaName(isa));
  backend.memory = MakeHostMemory();
  backend.pool = std::make_unique<ThreadPool>(options.threads);
  backend.linear = MakeCpuLinear(isa, backend.pool.get());
  backend.codec = MakeCpuPageCodec(isa);
  backend.attention = MakeCpuAttention(isa, backend.pool.get());
  return backend;
}

}  // namespace strata
