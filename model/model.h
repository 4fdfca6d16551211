#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cache/layout/kv_basis.h"
#include "kernels/backend.h"
#include "kernels/kv_step.h"
#include "model/device_draws.h"
#include "model/model_config.h"
#include "model/tokenizer.h"

namespace strata {

// The rows of one step. Rows of one sequence are consecutive, as KvStep's sequences are.
struct ForwardBatch {
  absl::Span<const int32_t> tokens;      // [rows]
  absl::Span<const int32_t> positions;   // [rows]
  absl::Span<const int32_t> logit_rows;  // rows whose logits are wanted, ascending
  // Of those, the ones of which only a token is wanted. Null or empty: none.
  DeviceDraws* draws = nullptr;
};

struct ModelOptions {
  std::string path;             // GGUF file
  int32_t max_rows = 320;       // rows of the largest step: sizes the scratch
  bool calibrate_basis = true;  // false: the plain K basis with V rotated
  bool plain_basis = false;     // neither K nor V rotated (parity runs)
  std::string basis_cache_dir;  // where the measured basis is kept; empty: beside the model, else
                                // the user's cache directory
};

// A model ready to run on one backend: weights, tokenizer, basis. Forward is for the engine thread;
// everything const is for any thread.
class Model {
 public:
  // Errors name the file and what is wrong with it. `backend` must outlive the model.
  static absl::StatusOr<std::unique_ptr<Model>> Load(const ModelOptions& options, Backend* backend);
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const Tokenizer& tokenizer() const = 0;
  virtual const KvBasis& basis() const = 0;
  virtual uint64_t fingerprint() const = 0;  // of the file's metadata, tensor table and a sample
                                             // of its data
  virtual size_t weight_bytes() const = 0;   // resident, prepared
  virtual const std::string& weight_format() const = 0;  // the commonest tensor type, "Q4_1"
  // [layers]: what each layer's attention loses where its K is read in 2 bits (key_errors.h); empty
  // where that was not measured.
  virtual absl::Span<const float> k_errors() const { return {}; }
  // What an operator should know of the load, a line each: where the basis came from, what went
  // wrong without stopping it.
  virtual std::vector<std::string> load_notes() const { return {}; }

  // Whether Forward takes draws: the logits lie on a device that can sample.
  virtual bool draws_tokens() const { return false; }

  // logits: [logit_rows][vocab_size], on the host; rows that `draws` names are not written, and
  // their tokens are in `draws`. When it returns, in error too, the device is done with the step.
  // An error of KvStep::BeginLayer is returned as it is and leaves nothing half-done that a repeat
  // would not overwrite.
  virtual absl::Status Forward(const ForwardBatch& batch, KvStep* kv, float* logits) = 0;
};

}  // namespace strata
