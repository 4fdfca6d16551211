// What is decided at the door, without a network: files, tokens, paths.

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/rpc/call_authorizer.h"
#include "server/rpc/tls_reloader.h"
#include "tests/server/test_certificates.h"
#include "tests/testing/test_folder.h"

namespace strata::rpc {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr char kOld[] = "old-token-0123456789";
constexpr char kNew[] = "new-token-0123456789";
constexpr char kCache[] = "cache-token-0123456789";

class SecurityTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_.Path(name); }
  std::string Put(const std::string& name, const std::string& text) const {
    return folder_.Put(name, text);
  }
  std::unique_ptr<BearerTokens> Tokens(const std::string& name, const std::string& text) {
    auto tokens = BearerTokens::Load(Put(name, text), [this](const absl::Status& status) {
      (status.ok() ? accepted_ : rejected_)++;
      last_ = std::string(status.message());
    });
    EXPECT_TRUE(tokens.ok()) << tokens.status();
    return *std::move(tokens);
  }
  std::string TokenError(const std::string& text) {
    const auto tokens = BearerTokens::Load(Put("bad", text), [](const absl::Status&) {});
    EXPECT_TRUE(absl::IsInvalidArgument(tokens.status()));
    return std::string(tokens.status().message());
  }
  std::string TlsError(const TlsFiles& files) {
    const auto material = ReadTlsFiles(files, absl::Now());
    EXPECT_TRUE(absl::IsInvalidArgument(material.status()));
    return std::string(material.status().message());
  }

  const TestFolder folder_;
  int accepted_ = 0;
  int rejected_ = 0;
  std::string last_;
};

TEST_F(SecurityTest, TokensRotateWhileBothAreInTheFile) {
  const auto tokens = Tokens("tokens", absl::StrCat("# ours\n\n", kOld, "\n"));
  EXPECT_TRUE(tokens->Accepts(kOld));
  EXPECT_FALSE(tokens->Accepts(kNew));
  EXPECT_FALSE(tokens->Accepts("# ours"));
  Put("tokens", absl::StrCat(kOld, "\r\n", kNew, "\r\n"));
  EXPECT_TRUE(tokens->Accepts(kNew));
  EXPECT_TRUE(tokens->Accepts(kOld));
  Put("tokens", kNew);
  EXPECT_FALSE(tokens->Accepts(kOld));
  EXPECT_TRUE(tokens->Accepts(kNew));
  EXPECT_EQ(accepted_, 2);
}

TEST_F(SecurityTest, ABadTokenFileLeavesTheTokensBefore) {
  const auto tokens = Tokens("tokens", kOld);
  for (const std::string& bad : {std::string(), std::string("short"), std::string("a b\n")}) {
    Put("tokens", bad);
    EXPECT_TRUE(tokens->Accepts(kOld)) << bad;
  }
  std::filesystem::remove(Path("tokens"));
  EXPECT_TRUE(tokens->Accepts(kOld));
  EXPECT_EQ(rejected_, 4);
  EXPECT_THAT(last_, HasSubstr(Path("tokens")));
}

TEST_F(SecurityTest, TokenErrorsNameTheLineAndNotTheToken) {
  const std::string error = TokenError(absl::StrCat(kOld, "\nshort-secret\n"));
  EXPECT_THAT(error, HasSubstr(":2: a token of 12 characters"));
  EXPECT_THAT(error, Not(HasSubstr("secret")));
  EXPECT_THAT(TokenError("#\n"), HasSubstr("no token"));
  EXPECT_THAT(TokenError(std::string(1025, 'x')), HasSubstr("1025"));
  EXPECT_THAT(TokenError(std::string(200000, '\n')), HasSubstr("more than 131072 bytes"));
  std::string many;
  for (int i = 0; i < 65; ++i) absl::StrAppend(&many, "token-0123456789-", i, "\n");
  EXPECT_THAT(TokenError(many), HasSubstr("65 tokens, more than 64"));
}

TEST_F(SecurityTest, EveryServiceHasItsTokens) {
  SecurityMetrics metrics;
  CallAuthorizer both(Tokens("general", kOld), Tokens("cache", kCache), &metrics);
  const auto code = [](CallAuthorizer& authorizer, const std::string& service,
                       const std::string& authorization) {
    return authorizer.Check(absl::StrCat("/", service, "/Method"), authorization).code();
  };
  const std::string general = absl::StrCat("Bearer ", kOld);
  const std::string cache = absl::StrCat("bearer  ", kCache, " ");
  const std::string infer = "strata.v1.InferenceService";
  constexpr auto kOk = absl::StatusCode::kOk;
  constexpr auto kUnknown = absl::StatusCode::kUnauthenticated;
  constexpr auto kOther = absl::StatusCode::kPermissionDenied;
  EXPECT_EQ(code(both, infer, general), kOk);
  EXPECT_EQ(code(both, infer, cache), kOther);
  EXPECT_EQ(code(both, "strata.v1.CacheService", cache), kOk);
  EXPECT_EQ(code(both, "strata.v1.CacheService", general), kOther);
  EXPECT_EQ(code(both, "grpc.health.v1.Health", ""), kOk);
  EXPECT_EQ(code(both, "grpc.reflection.v1alpha.ServerReflection", cache), kOk);
  EXPECT_EQ(code(both, "grpc.reflection.v1alpha.ServerReflection", general), kOk);
  EXPECT_EQ(code(both, "not.a.Service", ""), kUnknown);
  for (const char* wrong : {"", "Bearer", "Bearer ", "Basic b2xkLXRva2Vu", kOld,
                            "Bearer old-token-012345678", "Bearer old-token-0123456789x"}) {
    EXPECT_EQ(code(both, infer, wrong), kUnknown) << wrong;
  }
  // A path that only looks like health.
  EXPECT_EQ(both.Check("/grpc.health.v1.HealthX/Check", "").code(), kUnknown);

  CallAuthorizer one(Tokens("general", kOld), nullptr, &metrics);
  EXPECT_EQ(code(one, "strata.v1.CacheService", general), kOk);
  CallAuthorizer cache_only(nullptr, Tokens("cache", kCache), &metrics);
  EXPECT_EQ(code(cache_only, infer, ""), kOk);
  EXPECT_EQ(code(cache_only, "strata.v1.CacheService", ""), kUnknown);
}

TEST_F(SecurityTest, CertificatesThatCannotServeAreRefusedWithTheReason) {
  const TestIdentity good = MakeTestIdentity({});
  const TestIdentity expired = MakeTestIdentity({.valid_from_s = -7200, .valid_until_s = -3600});
  const TestIdentity early = MakeTestIdentity({.valid_from_s = 3600, .valid_until_s = 7200});
  const std::string cert = Put("good.crt", good.certificate);
  const std::string key = Put("good.key", good.key);
  const auto material = ReadTlsFiles({cert, key, cert}, absl::Now());
  ASSERT_TRUE(material.ok()) << material.status();
  EXPECT_GT(material->not_after, absl::Now());
  EXPECT_THAT(TlsError({Path("none.crt"), key, ""}), HasSubstr("cannot read " + Path("none.crt")));
  EXPECT_THAT(TlsError({cert, Path("none.key"), ""}), HasSubstr("cannot read"));
  EXPECT_THAT(TlsError({key, key, ""}), HasSubstr("no certificate in PEM form"));
  EXPECT_THAT(TlsError({cert, cert, ""}), HasSubstr("no private key in PEM form"));
  EXPECT_THAT(TlsError({cert, Put("other.key", expired.key), ""}),
              HasSubstr("not the key of the certificate in " + cert));
  EXPECT_THAT(TlsError({Put("old.crt", expired.certificate), Put("old.key", expired.key), ""}),
              HasSubstr("old.crt: the certificate expired on 2"));
  EXPECT_THAT(TlsError({Put("new.crt", early.certificate), Put("new.key", early.key), ""}),
              HasSubstr("is valid from"));
  EXPECT_THAT(TlsError({cert, key, key}), HasSubstr("no certificate"));
  EXPECT_THAT(TlsError({cert, key, Path("old.crt")}), HasSubstr("expired"));
  // One authority that is valid is enough.
  EXPECT_TRUE(
      ReadTlsFiles({cert, key, Put("ca", expired.certificate + good.certificate)}, absl::Now())
          .ok());
}

TEST_F(SecurityTest, ABadNewPairLeavesTheOneBefore) {
  const TestIdentity first = MakeTestIdentity({});
  const TestIdentity second = MakeTestIdentity({});
  const TlsFiles files = {Put("crt", first.certificate), Put("key", first.key), ""};
  auto reloader = TlsReloader::Load(files, [this](const absl::StatusOr<TlsMaterial>& material) {
    (material.ok() ? accepted_ : rejected_)++;
  });
  ASSERT_TRUE(reloader.ok()) << reloader.status();
  const auto before = (*reloader)->Latest();
  EXPECT_EQ((*reloader)->Latest(), before);
  Put("crt", second.certificate);  // without its key yet
  EXPECT_EQ((*reloader)->Latest(), before);
  EXPECT_EQ(rejected_, 1);
  Put("key", second.key);
  EXPECT_EQ((*reloader)->Latest()->certificate, second.certificate);
  EXPECT_EQ(accepted_, 1);
  std::filesystem::remove(Path("key"));
  EXPECT_EQ((*reloader)->Latest()->key, second.key);
  EXPECT_EQ(rejected_, 2);
}

}  // namespace
}  // namespace strata::rpc
