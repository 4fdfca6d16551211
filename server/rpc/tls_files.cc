#include "server/rpc/tls_files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <ctime>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/small_file.h"
#include "base/status_macros.h"

namespace strata::rpc {
namespace {

constexpr size_t kPemBytesMax = 1 << 20;

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Certificate = std::unique_ptr<X509, Deleter<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;
using Bio = std::unique_ptr<BIO, Deleter<BIO_free>>;

Bio Open(const std::string& pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

std::vector<Certificate> ParseCertificates(const std::string& pem) {
  const Bio bio = Open(pem);
  std::vector<Certificate> certificates;
  while (X509* certificate = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    certificates.emplace_back(certificate);
  }
  ERR_clear_error();  // the end of the text is reported as an error
  return certificates;
}

Key ParseKey(const std::string& pem) {
  // A key behind a passphrase is an error; by default OpenSSL would ask the terminal.
  const auto no_passphrase = [](char*, int, int, void*) { return -1; };
  Key key(PEM_read_bio_PrivateKey(Open(pem).get(), nullptr, no_passphrase, nullptr));
  ERR_clear_error();
  return key;
}

absl::Time TimeOf(const ASN1_TIME* time) {
  std::tm utc{};
  if (ASN1_TIME_to_tm(time, &utc) != 1) return absl::InfinitePast();
  return absl::FromTM(utc, absl::UTCTimeZone());
}

absl::Time Expiry(const Certificate& certificate) {
  return TimeOf(X509_get0_notAfter(certificate.get()));
}

std::string Written(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
}

absl::Status Wrong(const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

absl::Status CheckTime(const std::string& path, const Certificate& certificate, absl::Time now) {
  const absl::Time begin = TimeOf(X509_get0_notBefore(certificate.get()));
  if (Expiry(certificate) < now) {
    return Wrong(path, absl::StrCat("the certificate expired on ", Written(Expiry(certificate)),
                                    "; it is ", Written(now)));
  }
  if (begin > now) {
    return Wrong(path, absl::StrCat("the certificate is valid from ", Written(begin),
                                    " on only; it is ", Written(now)));
  }
  return absl::OkStatus();
}

absl::Status CheckClientCa(const std::string& path, const std::string& pem, absl::Time now) {
  const std::vector<Certificate> authorities = ParseCertificates(pem);
  if (authorities.empty()) return Wrong(path, "no certificate in PEM form");
  absl::Status status;
  for (const Certificate& authority : authorities) {
    status = CheckTime(path, authority, now);
    if (status.ok()) return status;
  }
  return status;
}

}  // namespace

absl::StatusOr<TlsMaterial> ReadTlsFiles(const TlsFiles& files, absl::Time now) {
  TlsMaterial material;
  STRATA_ASSIGN_OR_RETURN(material.certificate, ReadSmallFile(files.certificate, kPemBytesMax));
  STRATA_ASSIGN_OR_RETURN(material.key, ReadSmallFile(files.key, kPemBytesMax));
  const std::vector<Certificate> chain = ParseCertificates(material.certificate);
  if (chain.empty()) return Wrong(files.certificate, "no certificate in PEM form");
  const Key key = ParseKey(material.key);
  if (key == nullptr) {
    return Wrong(files.key, "no private key in PEM form without a passphrase");
  }
  const bool together = X509_check_private_key(chain.front().get(), key.get()) == 1;
  ERR_clear_error();
  if (!together) {
    return Wrong(files.key, absl::StrCat("not the key of the certificate in ", files.certificate));
  }
  STRATA_RETURN_IF_ERROR(CheckTime(files.certificate, chain.front(), now));
  material.not_after = Expiry(chain.front());
  if (files.client_ca.empty()) return material;
  STRATA_ASSIGN_OR_RETURN(material.client_ca, ReadSmallFile(files.client_ca, kPemBytesMax));
  STRATA_RETURN_IF_ERROR(CheckClientCa(files.client_ca, material.client_ca, now));
  return material;
}

}  // namespace strata::rpc
