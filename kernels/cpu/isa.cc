#include "kernels/cpu/isa.h"

#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace strata {
namespace {

struct Feature {
  absl::string_view name;
  Isa needed_by;  // the lowest instruction set that needs it
  bool present;
};

// __builtin_cpu_supports takes literals only; it also checks that the system saves the registers.
#if defined(__x86_64__)
#define STRATA_CPU_HAS(name) (__builtin_cpu_supports(name) != 0)
#else
#define STRATA_CPU_HAS(name) false
#endif

struct FeatureList {
  Feature all[8];
};

const FeatureList& Features() {
  static const FeatureList list = {{
      {"avx2", Isa::kAvx2, STRATA_CPU_HAS("avx2")},
      {"fma", Isa::kAvx2, STRATA_CPU_HAS("fma")},
      {"f16c", Isa::kAvx2, STRATA_CPU_HAS("f16c")},
      {"avx512f", Isa::kAvx512, STRATA_CPU_HAS("avx512f")},
      {"avx512bw", Isa::kAvx512, STRATA_CPU_HAS("avx512bw")},
      {"avx512dq", Isa::kAvx512, STRATA_CPU_HAS("avx512dq")},
      {"avx512vl", Isa::kAvx512, STRATA_CPU_HAS("avx512vl")},
      {"avx512vnni", Isa::kAvx512, STRATA_CPU_HAS("avx512vnni")},
  }};
  return list;
}

#undef STRATA_CPU_HAS

// The features that `isa` needs and this CPU lacks, separated by spaces.
std::string Missing(Isa isa) {
  std::string names;
  for (const Feature& feature : Features().all) {
    if (feature.needed_by > isa || feature.present) continue;
    absl::StrAppend(&names, names.empty() ? "" : " ", feature.name);
  }
  return names;
}

constexpr Isa kAllIsas[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512};

}  // namespace

absl::string_view IsaName(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "";
}

absl::StatusOr<Isa> ChooseIsa(absl::string_view forced) {
  absl::string_view source = "option";
  if (forced.empty()) {
    const char* variable = std::getenv("STRATA_FORCE_ISA");
    if (variable != nullptr) forced = variable;
    source = "STRATA_FORCE_ISA";
  }
  if (forced.empty()) {
    Isa best = Isa::kScalar;
    for (Isa isa : kAllIsas) {
      if (Missing(isa).empty()) best = isa;
    }
    return best;
  }
  for (Isa isa : kAllIsas) {
    if (forced != IsaName(isa)) continue;
    const std::string missing = Missing(isa);
    if (missing.empty()) return isa;
    return absl::FailedPreconditionError(
        absl::StrCat("instruction set '", forced, "' (from ", source,
                     ") needs CPU features that this CPU lacks: ", missing));
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown instruction set '", forced, "' (from ",
                                                 source, "); known: scalar, avx2, avx512"));
}

std::string CpuFeatureNames() {
  std::string names;
  for (const Feature& feature : Features().all) {
    if (feature.present) absl::StrAppend(&names, names.empty() ? "" : " ", feature.name);
  }
  return names;
}

}  // namespace strata
