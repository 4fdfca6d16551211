#include "model/tokenizer.h"

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/gguf_file.h"
#include "model/tokenizer_base.h"

namespace strata {
namespace {

absl::StatusOr<std::unique_ptr<Tokenizer>> CreateByModel(const GgufFile& file) {
  STRATA_ASSIGN_OR_RETURN(const absl::string_view model, file.String("tokenizer.ggml.model"));
  if (model == "gpt2") return CreateBpeTokenizer(file);
  if (model == "llama") return CreateSpmTokenizer(file);
  return absl::UnimplementedError(
      absl::StrCat("tokenizer model \"", model,
                   "\" is not supported; known are gpt2 (byte-level BPE), llama (SentencePiece)"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(const GgufFile& file) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = CreateByModel(file);
  if (tokenizer.ok() || absl::StrContains(tokenizer.status().message(), file.path())) {
    return tokenizer;
  }
  const absl::Status& status = tokenizer.status();
  return absl::Status(status.code(), absl::StrCat(file.path(), ": ", status.message()));
}

}  // namespace strata
