#include "kernels/backend.h"
#include "kernels/reference/attention_reference.h"
#include "kernels/reference/linear_reference.h"

namespace strata {

Backend CreateReferenceBackend() {
  Backend backend;
  backend.name = "reference";
  backend.memory = MakeHostMemory();
  backend.linear = MakeReferenceLinear();
  backend.codec = MakeReferencePageCodec();
  backend.attention = MakeReferenceAttention();
  return backend;
}

}  // namespace strata
