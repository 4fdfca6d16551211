#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "model/gguf_file.h"
#include "model/spm_merger.h"
#include "model/tokenizer_base.h"

namespace strata {
namespace {

// SentencePiece's own ids and habits, for files that do not state them.
constexpr VocabularyDefaults kDefaults = {
    .bos_id = 1, .eos_id = 2, .unknown_id = 0, .adds_bos = true, .adds_space_prefix = true};

class SpmTokenizer final : public TokenizerBase {
 public:
  SpmTokenizer(std::unique_ptr<const Vocabulary> vocabulary, SpmMerger merger)
      : TokenizerBase(std::move(vocabulary)), merger_(std::move(merger)) {}

 protected:
  absl::Status EncodeText(absl::string_view text, uint32_t offset,
                          std::vector<TokenSpan>* out) const override {
    merger_.Merge(text, offset, vocab().adds_space_prefix(), out);
    return absl::OkStatus();
  }

  std::string TextTokenBytes(int32_t id) const override {
    const int byte = merger_.ByteOf(id);
    if (byte >= 0) return std::string(1, static_cast<char>(byte));
    return absl::StrReplaceAll(vocab().text(id), {{kSpmSpace, " "}});
  }

 private:
  SpmMerger merger_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> CreateSpmTokenizer(const GgufFile& file) {
  STRATA_ASSIGN_OR_RETURN(Vocabulary read, Vocabulary::Read(file, kDefaults));
  auto vocabulary = std::make_unique<const Vocabulary>(std::move(read));
  STRATA_ASSIGN_OR_RETURN(SpmMerger merger, SpmMerger::Create(vocabulary.get()));
  return std::make_unique<SpmTokenizer>(std::move(vocabulary), std::move(merger));
}

}  // namespace strata
