#pragma once

#include <vector>

#include "cache/layout/kv_basis.h"

namespace strata {

// What is measured of a model's K and V when it is first loaded, and kept (basis_store.h).
struct KvMeasurement {
  KvBasis basis;
  std::vector<float> k_errors;  // [layers], key_errors.h
};

}  // namespace strata
