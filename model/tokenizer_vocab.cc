#include "model/tokenizer_vocab.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/gguf_file.h"

namespace strata {
namespace {

constexpr size_t kTokensMax = size_t{1} << 24;
// Far above any real token; bounds the work per character wherever token texts are searched.
constexpr size_t kTokenTextBytesMax = 4096;

constexpr absl::string_view kTokensKey = "tokenizer.ggml.tokens";
constexpr absl::string_view kKindsKey = "tokenizer.ggml.token_type";
constexpr absl::string_view kScoresKey = "tokenizer.ggml.scores";

// Control tokens that end a turn or a text in the model families served, whether or not the
// metadata's eos and eot name them.
constexpr absl::string_view kEogTexts[] = {
    "<|im_end|>",      "<|eot_id|>", "<|eom_id|>",    "<|endoftext|>",
    "<|end_of_text|>", "<|end|>",    "<end_of_turn>", "</s>"};

template <typename... Parts>
absl::Status Invalid(const GgufFile& file, absl::string_view key, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(file.path(), ": ", key, ": ", parts...));
}

absl::StatusOr<bool> BoolOr(const GgufFile& file, absl::string_view key, bool otherwise) {
  if (!file.Has(key)) return otherwise;
  return file.Bool(key);
}

absl::StatusOr<int32_t> IdOr(const GgufFile& file, absl::string_view key, int32_t vocab_size,
                             int32_t otherwise) {
  if (!file.Has(key)) return otherwise < vocab_size ? otherwise : -1;
  STRATA_ASSIGN_OR_RETURN(const uint64_t id, file.Uint(key));
  if (id >= static_cast<uint64_t>(vocab_size)) {
    return Invalid(file, key, "id ", id, " is outside the vocabulary of ", vocab_size, " tokens");
  }
  return static_cast<int32_t>(id);
}

}  // namespace

absl::StatusOr<Vocabulary> Vocabulary::Read(const GgufFile& file,
                                            const VocabularyDefaults& defaults) {
  Vocabulary vocab;
  STRATA_RETURN_IF_ERROR(vocab.ReadTokens(file));
  STRATA_RETURN_IF_ERROR(vocab.ReadKinds(file));
  STRATA_RETURN_IF_ERROR(vocab.ReadScores(file));
  STRATA_RETURN_IF_ERROR(vocab.ReadIds(file, defaults));
  STRATA_RETURN_IF_ERROR(vocab.ReadEog(file));
  return vocab;
}

int32_t Vocabulary::Find(absl::string_view text) const {
  const auto found = ids_.find(text);
  return found == ids_.end() ? -1 : found->second;
}

absl::Status Vocabulary::ReadTokens(const GgufFile& file) {
  STRATA_ASSIGN_OR_RETURN(const std::vector<absl::string_view> texts, file.Strings(kTokensKey));
  if (texts.empty() || texts.size() > kTokensMax) {
    return Invalid(file, kTokensKey, texts.size(), " tokens; 1 to ", kTokensMax, " are allowed");
  }
  texts_.reserve(texts.size());
  for (const absl::string_view token : texts) texts_.emplace_back(token);
  ids_.reserve(texts_.size());
  for (int32_t id = 0; id < size(); ++id) {
    if (text(id).size() > kTokenTextBytesMax) {
      return Invalid(file, kTokensKey, "token ", id, " has ", text(id).size(), " bytes; at most ",
                     kTokenTextBytesMax, " are allowed");
    }
    if (text(id).empty()) continue;
    const auto [entry, inserted] = ids_.emplace(text(id), id);
    if (!inserted) {
      return Invalid(file, kTokensKey, "tokens ", entry->second, " and ", id, " are both \"",
                     text(id), "\"");
    }
  }
  return absl::OkStatus();
}

absl::Status Vocabulary::ReadKinds(const GgufFile& file) {
  kinds_.assign(texts_.size(), TokenKind::kNormal);
  if (!file.Has(kKindsKey)) return absl::OkStatus();
  STRATA_ASSIGN_OR_RETURN(const std::vector<int64_t> kinds, file.Ints(kKindsKey));
  if (kinds.size() != texts_.size()) {
    return Invalid(file, kKindsKey, kinds.size(), " types for ", texts_.size(), " tokens");
  }
  for (size_t id = 0; id < kinds.size(); ++id) {
    if (kinds[id] < 1 || kinds[id] > 6) {
      return Invalid(file, kKindsKey, "token ", id, " has type ", kinds[id], "; 1 to 6 are known");
    }
    kinds_[id] = static_cast<TokenKind>(kinds[id]);
  }
  return absl::OkStatus();
}

absl::Status Vocabulary::ReadScores(const GgufFile& file) {
  if (!file.Has(kScoresKey)) return absl::OkStatus();
  STRATA_ASSIGN_OR_RETURN(scores_, file.Floats(kScoresKey));
  if (scores_.size() != texts_.size()) {
    return Invalid(file, kScoresKey, scores_.size(), " scores for ", texts_.size(), " tokens");
  }
  const auto nan = std::find_if(scores_.begin(), scores_.end(), [](float s) { return s != s; });
  if (nan != scores_.end()) {
    return Invalid(file, kScoresKey, "the score of token ", nan - scores_.begin(), " is NaN");
  }
  return absl::OkStatus();
}

absl::Status Vocabulary::ReadIds(const GgufFile& file, const VocabularyDefaults& defaults) {
  STRATA_ASSIGN_OR_RETURN(bos_id_,
                          IdOr(file, "tokenizer.ggml.bos_token_id", size(), defaults.bos_id));
  STRATA_ASSIGN_OR_RETURN(eos_id_,
                          IdOr(file, "tokenizer.ggml.eos_token_id", size(), defaults.eos_id));
  STRATA_ASSIGN_OR_RETURN(
      unknown_id_, IdOr(file, "tokenizer.ggml.unknown_token_id", size(), defaults.unknown_id));
  STRATA_ASSIGN_OR_RETURN(adds_bos_,
                          BoolOr(file, "tokenizer.ggml.add_bos_token", defaults.adds_bos));
  STRATA_ASSIGN_OR_RETURN(adds_eos_, BoolOr(file, "tokenizer.ggml.add_eos_token", false));
  STRATA_ASSIGN_OR_RETURN(adds_space_prefix_, BoolOr(file, "tokenizer.ggml.add_space_prefix",
                                                     defaults.adds_space_prefix));
  if (adds_bos_ && bos_id_ < 0) {
    return Invalid(file, "tokenizer.ggml.add_bos_token", "true, but there is no bos_token_id");
  }
  if (adds_eos_ && eos_id_ < 0) {
    return Invalid(file, "tokenizer.ggml.add_eos_token", "true, but there is no eos_token_id");
  }
  return absl::OkStatus();
}

absl::Status Vocabulary::ReadEog(const GgufFile& file) {
  std::set<int32_t> ids;
  for (const absl::string_view key :
       {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    STRATA_ASSIGN_OR_RETURN(const int32_t id, IdOr(file, key, size(), -1));
    ids.insert(id);
  }
  ids.insert(eos_id_);
  for (const absl::string_view text : kEogTexts) {
    const int32_t id = Find(text);
    if (id >= 0 && kind(id) == TokenKind::kControl) ids.insert(id);
  }
  ids.erase(-1);
  eog_ids_.assign(ids.begin(), ids.end());
  return absl::OkStatus();
}

}  // namespace strata
