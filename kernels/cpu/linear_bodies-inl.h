#pragma once

#include "kernels/cpu/linear_small-inl.h"
#include "kernels/cpu/linear_table-inl.h"
#include "kernels/cpu/matmul-inl.h"

namespace strata {

// The table of one instruction set, from its primitives.
template <class S>
constexpr LinearTable MakeLinearTable() {
  LinearTable table;
  table.quantize = &Panel<S>::Quantize;
  table.copy_plain = &Panel<S>::CopyPlain;
  table.matmul[0] = &PlainMatmulOf<S, 0>::Run;
  table.matmul[1] = &PlainMatmulOf<S, 1>::Run;
  table.matmul[2] = &PlainMatmulOf<S, 2>::Run;
  table.matmul[3] = &MatmulOf<S, 3>::Run;
  table.matmul[4] = &MatmulOf<S, 4>::Run;
  table.matmul[5] = &MatmulOf<S, 5>::Run;
  table.matmul[6] = &MatmulOf<S, 6>::Run;
  table.matmul[7] = &MatmulOf<S, 7>::Run;
  table.matmul[8] = &MatmulOf<S, 8>::Run;
  table.matmul[9] = &MatmulOf<S, 9>::Run;
  table.matmul[10] = &MatmulOf<S, 10>::Run;
  table.rms_norm = &SmallOps<S>::RmsNorm;
  table.swiglu = &SmallOps<S>::SwiGlu;
  table.rope_row = &SmallOps<S>::RopeRow;
  table.hadamard = &SmallOps<S>::Hadamard;
  return table;
}

}  // namespace strata
