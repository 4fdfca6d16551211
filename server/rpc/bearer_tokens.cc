#include "server/rpc/bearer_tokens.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>

#include "absl/memory/memory.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/small_file.h"
#include "base/status_macros.h"

namespace strata::rpc {
namespace {

constexpr size_t kFileBytesMax = 128 << 10;

// A token's form: what the header field may hold (RFC 6750, b64token, taken widely).
absl::Status CheckToken(absl::string_view token, const std::string& where) {
  if (token.size() < BearerTokens::kTokenBytesMin || token.size() > BearerTokens::kTokenBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": a token of ", token.size(), " characters; ", BearerTokens::kTokenBytesMin, " to ",
        BearerTokens::kTokenBytesMax, " are allowed"));
  }
  if (!std::all_of(token.begin(), token.end(), absl::ascii_isgraph)) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": a token has a character that is not visible ASCII"));
  }
  return absl::OkStatus();
}

}  // namespace

BearerTokens::Digest BearerTokens::DigestOf(absl::string_view token) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), digest.data());
  return digest;
}

absl::StatusOr<std::vector<BearerTokens::Digest>> BearerTokens::Read(const std::string& path) {
  STRATA_ASSIGN_OR_RETURN(std::string text, ReadSmallFile(path, kFileBytesMax));
  std::vector<Digest> digests;
  int number = 0;
  absl::Status status;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    const absl::string_view token = absl::StripAsciiWhitespace(line);
    if (token.empty() || absl::StartsWith(token, "#")) continue;
    status = CheckToken(token, absl::StrCat(path, ":", number));
    if (!status.ok()) break;
    digests.push_back(DigestOf(token));
  }
  OPENSSL_cleanse(text.data(), text.size());
  STRATA_RETURN_IF_ERROR(status);
  if (digests.empty()) return absl::InvalidArgumentError(absl::StrCat(path, " has no token"));
  if (digests.size() > kTokensMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", digests.size(), " tokens, more than ", kTokensMax));
  }
  return digests;
}

absl::StatusOr<std::unique_ptr<BearerTokens>> BearerTokens::Load(const std::string& path,
                                                                 Observer observer) {
  auto tokens = absl::WrapUnique(new BearerTokens(path, std::move(observer)));
  absl::MutexLock lock(&tokens->mutex_);
  tokens->seen_ = FileStamp::Of(path);
  STRATA_ASSIGN_OR_RETURN(tokens->digests_, Read(path));
  return tokens;
}

void BearerTokens::Refresh() {
  absl::MutexLock lock(&mutex_);
  RefreshLocked();
}

void BearerTokens::RefreshLocked() {
  // Looked at before reading: what changes while it is read is read again the next time.
  const FileStamp now = FileStamp::Of(path_);
  if (now == seen_) return;
  seen_ = now;
  absl::StatusOr<std::vector<Digest>> digests = Read(path_);
  observer_(digests.status());
  if (digests.ok()) digests_ = *std::move(digests);
}

bool BearerTokens::Accepts(absl::string_view token) {
  const Digest digest = DigestOf(token);
  absl::MutexLock lock(&mutex_);
  RefreshLocked();
  unsigned matches = 0;
  for (const Digest& known : digests_) {
    matches |=
        static_cast<unsigned>(CRYPTO_memcmp(known.data(), digest.data(), digest.size()) == 0);
  }
  return matches != 0;
}

}  // namespace strata::rpc
