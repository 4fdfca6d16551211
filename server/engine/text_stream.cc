#include "server/engine/text_stream.h"

#include <utility>

namespace strata {

TextStream::TextStream(const Tokenizer* tokenizer, TextStreamOptions options)
    : tokenizer_(tokenizer),
      include_stop_(options.include_stop),
      show_special_(options.show_special),
      matcher_(StopSet(std::move(options.stop))),
      at_start_(options.starts_text) {}

std::string TextStream::TokenBytes(int32_t token) {
  const std::string bytes = tokenizer_->TokenBytes(token, show_special_);
  if (!at_start_ || bytes.empty()) return bytes;
  at_start_ = false;
  return tokenizer_->Decode({token}, show_special_);
}

TextStream::Piece TextStream::Push(int32_t token, bool may_stop) {
  if (stopped_) return {};
  StopMatcher::Result result = matcher_.Push(assembler_.Push(TokenBytes(token)), may_stop);
  if (result.matched == nullptr) return {std::move(result.text), std::nullopt};
  stopped_ = true;
  if (include_stop_) result.text += *result.matched;
  return {std::move(result.text), *result.matched};
}

std::string TextStream::Finish() {
  if (stopped_) return "";
  stopped_ = true;
  return matcher_.Finish() + assembler_.Finish();
}

}  // namespace strata
