#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace strata {

// The instruction sets that CPU kernels are built for, in rising order. Each one includes those
// before it. kAvx2 needs FMA and F16C too; kAvx512 needs F, BW, DQ, VL and VNNI.
enum class Isa { kScalar, kAvx2, kAvx512 };

// "scalar", "avx2" or "avx512".
absl::string_view IsaName(Isa isa);

// The instruction set to use: `forced` by name or, where that is empty, the environment variable
// STRATA_FORCE_ISA or, where that is unset or empty, the best one of this CPU. InvalidArgument for
// a name that is not known, FailedPrecondition naming the features that this CPU lacks.
absl::StatusOr<Isa> ChooseIsa(absl::string_view forced);

// The features of this CPU among those that any kernel asks for, separated by spaces.
std::string CpuFeatureNames();

}  // namespace strata
