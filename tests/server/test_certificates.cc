#include "tests/server/test_certificates.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <atomic>
#include <memory>

#include "base/check.h"

namespace strata::rpc {
namespace {

template <typename Write>
std::string ToPem(Write write) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new(BIO_s_mem()), BIO_free);
  STRATA_CHECK(write(bio.get()) == 1);
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

void AddExtension(X509* certificate, int id, const std::string& value) {
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, id, value.c_str());
  STRATA_CHECK(extension != nullptr);
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

}  // namespace

TestIdentity MakeTestIdentity(const TestCertificateOptions& options) {
  static std::atomic<long> serial{1};
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(), X509_free);
  STRATA_CHECK(key != nullptr && certificate != nullptr);
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), serial++);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), options.valid_from_s);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), options.valid_until_s);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* const name = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(options.name.c_str()), -1, -1,
                             0);
  if (options.issuer == nullptr) {
    X509_set_issuer_name(certificate.get(), name);
    AddExtension(certificate.get(), NID_basic_constraints, "critical,CA:TRUE");
    X509_sign(certificate.get(), key.get(), EVP_sha256());
  } else {
    const auto open = [](const std::string& pem) {
      return std::unique_ptr<BIO, decltype(&BIO_free)>(
          BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free);
    };
    const std::unique_ptr<X509, decltype(&X509_free)> issuer(
        PEM_read_bio_X509(open(options.issuer->certificate).get(), nullptr, nullptr, nullptr),
        X509_free);
    const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> issuer_key(
        PEM_read_bio_PrivateKey(open(options.issuer->key).get(), nullptr, nullptr, nullptr),
        EVP_PKEY_free);
    X509_set_issuer_name(certificate.get(), X509_get_subject_name(issuer.get()));
    AddExtension(certificate.get(), NID_subject_alt_name, "DNS:" + options.name);
    X509_sign(certificate.get(), issuer_key.get(), EVP_sha256());
  }
  return {ToPem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate.get()); }),
          ToPem([&](BIO* bio) {
            return PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
          })};
}

}  // namespace strata::rpc
