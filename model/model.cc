#include "model/model.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/basis_store.h"
#include "model/calibration.h"
#include "model/gguf_file.h"
#include "model/transformer.h"
#include "model/weights.h"

namespace strata {
namespace {

class LoadedModel : public Model {
 public:
  explicit LoadedModel(std::unique_ptr<GgufFile> file) : file_(std::move(file)) {}

  absl::Status Initialize(const ModelOptions& options, Backend* backend);

  const ModelConfig& config() const override { return config_; }
  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  const KvBasis& basis() const override { return kv_.basis; }
  absl::Span<const float> k_errors() const override { return kv_.k_errors; }
  uint64_t fingerprint() const override { return fingerprint_; }
  size_t weight_bytes() const override { return weights_.bytes; }
  const std::string& weight_format() const override { return weights_.format; }
  std::vector<std::string> load_notes() const override { return notes_; }

  bool draws_tokens() const override { return transformer_->draws_tokens(); }
  absl::Status Forward(const ForwardBatch& batch, KvStep* kv, float* logits) override {
    return transformer_->Forward(batch, kv, logits);
  }

 private:
  absl::Status LoadTokenizer();
  absl::Status ChooseBasis(const ModelOptions& options, const PageCodec& codec);
  bool ReadKeptBasis(const std::vector<std::string>& candidates);
  void KeepBasis(const std::vector<std::string>& candidates);

  std::unique_ptr<GgufFile> file_;  // the tokenizer may refer to its text
  ModelConfig config_;
  std::unique_ptr<Tokenizer> tokenizer_;
  ModelWeights weights_;
  std::unique_ptr<Transformer> transformer_;
  KvMeasurement kv_;
  uint64_t fingerprint_ = 0;
  std::vector<std::string> notes_;
};

absl::Status LoadedModel::Initialize(const ModelOptions& options, Backend* backend) {
  if (options.max_rows < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_rows is ", options.max_rows, ", it must be at least 1"));
  }
  STRATA_ASSIGN_OR_RETURN(config_, ReadModelConfig(*file_));
  STRATA_RETURN_IF_ERROR(LoadTokenizer());
  STRATA_ASSIGN_OR_RETURN(weights_, LoadWeights(*file_, config_, backend));
  fingerprint_ = file_->Fingerprint();
  STRATA_ASSIGN_OR_RETURN(Transformer transformer,
                          Transformer::Create(&config_, &weights_, backend, options.max_rows));
  transformer_ = std::make_unique<Transformer>(std::move(transformer));
  STRATA_RETURN_IF_ERROR(ChooseBasis(options, *backend->codec));
  STRATA_RETURN_IF_ERROR(transformer_->SetBasis(kv_.basis));
  file_->DropResidentPages();
  return absl::OkStatus();
}

absl::Status LoadedModel::LoadTokenizer() {
  STRATA_ASSIGN_OR_RETURN(tokenizer_, Tokenizer::Create(*file_));
  if (tokenizer_->vocab_size() > config_.vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_->path(), ": the tokenizer has ", tokenizer_->vocab_size(),
                     " tokens, 'token_embd.weight' has ", config_.vocab_size, " rows"));
  }
  return absl::OkStatus();
}

absl::Status LoadedModel::ChooseBasis(const ModelOptions& options, const PageCodec& codec) {
  kv_.basis = KvBasis::Plain(config_.Geometry());
  if (options.plain_basis) return absl::OkStatus();
  kv_.basis.rotate_v = true;
  if (!options.calibrate_basis) return absl::OkStatus();

  const std::vector<std::string> candidates =
      BasisFileCandidates(options.path, options.basis_cache_dir, fingerprint_);
  if (ReadKeptBasis(candidates)) return absl::OkStatus();
  const auto start = std::chrono::steady_clock::now();
  auto measured = MeasureKv(config_, *tokenizer_, codec, transformer_.get());
  if (absl::IsFailedPrecondition(measured.status())) {
    notes_.push_back(absl::StrCat("K is stored unrotated: ", measured.status().message()));
    return absl::OkStatus();
  }
  if (!measured.ok()) return measured.status();
  kv_ = *std::move(measured);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  notes_.push_back(absl::StrCat("measured the K basis in ", seconds.count(), " s"));
  KeepBasis(candidates);
  return absl::OkStatus();
}

bool LoadedModel::ReadKeptBasis(const std::vector<std::string>& candidates) {
  for (const std::string& path : candidates) {
    auto kept = ReadBasisFile(path, fingerprint_, config_.Geometry());
    if (kept.ok()) {
      kv_ = *std::move(kept);
      notes_.push_back(absl::StrCat("read the K basis from ", path));
      return true;
    }
    if (!absl::IsNotFound(kept.status())) {
      notes_.push_back(absl::StrCat("warning: ", kept.status().message(), "; measuring anew"));
    }
  }
  return false;
}

void LoadedModel::KeepBasis(const std::vector<std::string>& candidates) {
  std::string errors;
  for (const std::string& path : candidates) {
    const absl::Status status = WriteBasisFile(path, fingerprint_, kv_);
    if (status.ok()) {
      notes_.push_back(absl::StrCat("wrote the K basis to ", path));
      return;
    }
    absl::StrAppend(&errors, errors.empty() ? "" : "; ", status.message());
  }
  notes_.push_back(
      absl::StrCat("warning: the K basis cannot be kept and will be measured at every "
                   "start: ",
                   errors));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Model::Load(const ModelOptions& options, Backend* backend) {
  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, GgufFile::Open(options.path));
  auto model = std::make_unique<LoadedModel>(std::move(file));
  STRATA_RETURN_IF_ERROR(model->Initialize(options, backend));
  return model;
}

}  // namespace strata
