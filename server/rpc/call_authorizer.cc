#include "server/rpc/call_authorizer.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace strata::rpc {
namespace {

constexpr absl::string_view kHealth = "/grpc.health.v1.Health/";
constexpr absl::string_view kCache = "/strata.v1.CacheService/";
constexpr absl::string_view kReflection = "/grpc.reflection.";
constexpr absl::string_view kScheme = "bearer ";

// The token of "Bearer TOKEN"; empty where there is none.
absl::string_view TokenOf(absl::string_view authorization) {
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return {};
  return absl::StripAsciiWhitespace(authorization.substr(kScheme.size()));
}

}  // namespace

absl::Status CallAuthorizer::Check(absl::string_view path, absl::string_view authorization) {
  if (absl::StartsWith(path, kHealth)) return absl::OkStatus();
  const bool reflection = absl::StartsWith(path, kReflection);
  BearerTokens* own = general_.get();
  BearerTokens* other = cache_.get();
  if (cache_ != nullptr && absl::StartsWith(path, kCache)) std::swap(own, other);
  if (own == nullptr) return absl::OkStatus();
  const absl::string_view token = TokenOf(authorization);
  if (token.empty()) return Refuse(Refusal::kNoToken);
  // Both are asked, whatever the first says: the time tells nothing (S2).
  const bool fits = own->Accepts(token);
  const bool fits_other = other != nullptr && other->Accepts(token);
  if (fits || (reflection && fits_other)) return absl::OkStatus();
  return Refuse(fits_other ? Refusal::kWrongService : Refusal::kWrongToken);
}

void CallAuthorizer::Refresh() {
  if (general_ != nullptr) general_->Refresh();
  if (cache_ != nullptr) cache_->Refresh();
}

absl::Status CallAuthorizer::Refuse(Refusal why) {
  metrics_->CountRefusal(why);
  switch (why) {
    case Refusal::kNoToken:
      return absl::UnauthenticatedError(
          "this server wants a token: send the header 'authorization: Bearer TOKEN'");
    case Refusal::kWrongToken:
      return absl::UnauthenticatedError("the bearer token is not one of this server's");
    case Refusal::kWrongService:
      break;
  }
  return absl::PermissionDeniedError("the bearer token is not one for this service");
}

}  // namespace strata::rpc
