#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "model/bpe_alphabet.h"
#include "model/bpe_merger.h"
#include "model/gguf_file.h"
#include "model/pretokenizer.h"
#include "model/tokenizer_base.h"
#include "model/unicode.h"

namespace strata {
namespace {

constexpr absl::string_view kPreKey = "tokenizer.ggml.pre";
constexpr absl::string_view kMergesKey = "tokenizer.ggml.merges";

// Byte-level BPE (GPT-2's kind). Invalid bytes take no part in words: each is a token of its own.
class BpeTokenizer final : public TokenizerBase {
 public:
  BpeTokenizer(std::unique_ptr<const Vocabulary> vocabulary, BpeMerger merger,
               std::unique_ptr<const PreTokenizer> pre_tokenizer, bool ignore_merges)
      : TokenizerBase(std::move(vocabulary)),
        merger_(std::move(merger)),
        pre_tokenizer_(std::move(pre_tokenizer)) {
    if (ignore_merges) IndexWholeWords();
  }

 protected:
  absl::Status EncodeText(absl::string_view text, uint32_t offset,
                          std::vector<TokenSpan>* out) const override {
    BpeMerger::Scratch scratch;
    std::vector<size_t> ends;
    while (!text.empty()) {
      const absl::string_view valid = text.substr(0, ValidUtf8Prefix(text));
      ends.clear();
      STRATA_RETURN_IF_ERROR(pre_tokenizer_->Split(valid, &ends));
      size_t start = 0;
      for (const size_t end : ends) {
        EncodeWord(valid.substr(start, end - start), offset + static_cast<uint32_t>(start),
                   &scratch, out);
        start = end;
      }
      text.remove_prefix(valid.size());
      offset += static_cast<uint32_t>(valid.size());
      for (; !text.empty() && NextUtf8(text).kind != Utf8Kind::kValid; text.remove_prefix(1)) {
        merger_.AppendByte(static_cast<uint8_t>(text[0]), offset++, out);
      }
    }
    return absl::OkStatus();
  }

  std::string TextTokenBytes(int32_t id) const override { return BpeTextToBytes(vocab().text(id)); }

 private:
  void IndexWholeWords() {
    for (int32_t id = 0; id < vocab().size(); ++id) {
      if (vocab().kind(id) == TokenKind::kNormal) words_.try_emplace(TextTokenBytes(id), id);
    }
  }

  void EncodeWord(absl::string_view word, uint32_t offset, BpeMerger::Scratch* scratch,
                  std::vector<TokenSpan>* out) const {
    const auto whole = words_.find(word);
    if (whole == words_.end()) return merger_.Merge(word, offset, scratch, out);
    out->push_back({whole->second, offset, offset + static_cast<uint32_t>(word.size())});
  }

  BpeMerger merger_;
  std::unique_ptr<const PreTokenizer> pre_tokenizer_;
  // Bytes of every normal token; empty unless whole words go before merges.
  absl::flat_hash_map<std::string, int32_t> words_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> CreateBpeTokenizer(const GgufFile& file) {
  STRATA_ASSIGN_OR_RETURN(const absl::string_view pre, file.String(kPreKey));
  STRATA_ASSIGN_OR_RETURN(const PreTokenizerRule rule, FindPreTokenizerRule(pre));
  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<PreTokenizer> pre_tokenizer, PreTokenizer::Create(rule));
  STRATA_ASSIGN_OR_RETURN(Vocabulary read, Vocabulary::Read(file, {.adds_bos = rule.adds_bos}));
  auto vocabulary = std::make_unique<const Vocabulary>(std::move(read));
  STRATA_ASSIGN_OR_RETURN(const std::vector<absl::string_view> merges, file.Strings(kMergesKey));
  STRATA_ASSIGN_OR_RETURN(BpeMerger merger, BpeMerger::Create(*vocabulary, merges));
  return std::make_unique<BpeTokenizer>(std::move(vocabulary), std::move(merger),
                                        std::move(pre_tokenizer), rule.ignore_merges);
}

}  // namespace strata
