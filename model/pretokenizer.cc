#include "model/pretokenizer.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace strata {
namespace {

// In the patterns \s stands only inside brackets and becomes Unicode's White_Space, spelled out:
// PCRE2's own \s also holds U+180E, which is no white space since Unicode 6.3.
constexpr absl::string_view kWhiteSpace =
    R"(\t\n\x0B\f\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

// GPT-2 (encoder.py).
constexpr absl::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|[\s]+(?![^\s])|[\s]+)";
// SmolLM and StarCoder cut out every digit first and apply GPT-2's pattern to what is left between.
// In one pass: digits come first, and space before a digit is space at the end of a text.
constexpr absl::string_view kDigitsThenGpt2 =
    R"(\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|[\s]+(?![^\s\p{N}])|[\s]+)";
// Llama 3 and Qwen 2 (tokenizer.json): they differ in how many digits make a word.
constexpr absl::string_view kLlama3 =
    R"('[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|[\s]*[\r\n]+|[\s]+(?![^\s])|[\s]+)";
constexpr absl::string_view kQwen2 =
    R"('[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|[\s]*[\r\n]+|[\s]+(?![^\s])|[\s]+)";

constexpr std::array<PreTokenizerRule, 9> kRules = {{
    {.name = "gpt-2", .pattern = kGpt2},
    {.name = "phi-2", .pattern = kGpt2},
    {.name = "smollm", .pattern = kDigitsThenGpt2},
    {.name = "starcoder", .pattern = kDigitsThenGpt2},
    {.name = "llama-bpe", .pattern = kLlama3, .ignore_merges = true, .adds_bos = true},
    {.name = "llama3", .pattern = kLlama3, .ignore_merges = true, .adds_bos = true},
    {.name = "llama-v3", .pattern = kLlama3, .ignore_merges = true, .adds_bos = true},
    {.name = "qwen2", .pattern = kQwen2},
    {.name = "deepseek-r1-qwen", .pattern = kQwen2},
}};

std::string Pcre2Message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

struct Pcre2Free {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

class Pcre2PreTokenizer final : public PreTokenizer {
 public:
  Pcre2PreTokenizer(pcre2_code* code, pcre2_match_context* context)
      : code_(code), context_(context) {}

  absl::Status Split(absl::string_view text, std::vector<size_t>* ends) const override {
    const std::unique_ptr<pcre2_match_data, Pcre2Free> data(
        pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    if (data == nullptr) return absl::ResourceExhaustedError("pre-tokenizer: no memory");
    size_t at = 0;
    while (at < text.size()) {
      const int rc = Match(text, at, data.get());
      if (rc == PCRE2_ERROR_NOMATCH) break;
      if (rc < 0) {
        return absl::InternalError(
            absl::StrCat("pre-tokenizer failed at byte ", at, ": ", Pcre2Message(rc)));
      }
      const PCRE2_SIZE* const match = pcre2_get_ovector_pointer(data.get());
      if (match[0] > at) ends->push_back(match[0]);
      ends->push_back(match[1]);
      at = match[1];
    }
    if (at < text.size()) ends->push_back(text.size());
    return absl::OkStatus();
  }

 private:
  int Match(absl::string_view text, size_t at, pcre2_match_data* data) const {
    const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    // PCRE2 would check the whole text again at each word: quadratic.
    const uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
    const int rc =
        pcre2_match(code_.get(), subject, text.size(), at, options, data, context_.get());
    if (rc != PCRE2_ERROR_JIT_STACKLIMIT) return rc;
    return pcre2_match(code_.get(), subject, text.size(), at, options | PCRE2_NO_JIT, data,
                       context_.get());
  }

  std::unique_ptr<pcre2_code, Pcre2Free> code_;
  std::unique_ptr<pcre2_match_context, Pcre2Free> context_;
};

}  // namespace

absl::StatusOr<PreTokenizerRule> FindPreTokenizerRule(absl::string_view name) {
  for (const PreTokenizerRule& rule : kRules) {
    if (rule.name == name) return rule;
  }
  return absl::UnimplementedError(
      absl::StrCat("pre-tokenizer \"", name, "\" is not supported; known are ",
                   absl::StrJoin(kRules, ", ", [](std::string* out, const PreTokenizerRule& rule) {
                     absl::StrAppend(out, rule.name);
                   })));
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> PreTokenizer::Create(const PreTokenizerRule& rule) {
  const std::string pattern = absl::StrReplaceAll(rule.pattern, {{R"(\s)", kWhiteSpace}});
  int error = 0;
  PCRE2_SIZE error_at = 0;
  pcre2_code* const code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP, &error, &error_at, nullptr);
  if (code == nullptr) {
    return absl::InternalError(absl::StrCat("pre-tokenizer \"", rule.name, "\": pattern, byte ",
                                            error_at, ": ", Pcre2Message(error)));
  }
  // Where there is no JIT, or no memory may be made executable, the interpreter does the same work.
  (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  pcre2_match_context* const context = pcre2_match_context_create(nullptr);
  if (context == nullptr) {
    pcre2_code_free(code);
    return absl::ResourceExhaustedError("pre-tokenizer: no memory");
  }
  // The patterns backtrack at most once over what they matched, so a long text is no reason to
  // fail.
  pcre2_set_match_limit(context, std::numeric_limits<uint32_t>::max());
  return std::make_unique<Pcre2PreTokenizer>(code, context);
}

}  // namespace strata
