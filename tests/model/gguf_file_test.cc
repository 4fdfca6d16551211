#include "model/gguf_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/model/gguf_builder.h"

namespace strata {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Files live in memory: tens of thousands of them are opened.
class GgufFileTest : public ::testing::Test {
 protected:
  static constexpr size_t kMatrixBytes = 16 * 34;

  ~GgufFileTest() override { close(fd_); }

  std::string Path() const { return "/proc/self/fd/" + std::to_string(fd_); }
  absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& bytes) {
    EXPECT_EQ(ftruncate(fd_, 0), 0);
    EXPECT_EQ(pwrite(fd_, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    return GgufFile::Open(Path());
  }
  void ExpectError(const std::string& bytes, absl::StatusCode code, const std::string& message) {
    const auto file = Open(bytes);
    ASSERT_FALSE(file.ok()) << "expected: " << message;
    EXPECT_EQ(file.status().code(), code) << file.status();
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(message));
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(Path()));
  }
  // A file of exactly one page whose last tensor ends with it: what reads past its end is likely to
  // fault.
  static GgufBuilder Good() {
    static const std::string pad(4096 - Padded("").Build().size(), '.');
    return Padded(pad);
  }

 private:
  static GgufBuilder Padded(const std::string& pad) {
    GgufBuilder builder;
    builder.String("pad", pad)
        .String("general.architecture", "llama")
        .U32("count", 7)
        .I32("below", -3)
        .U64("wide", ~uint64_t{0})
        .F32("epsilon", 0.25f)
        .Bool("yes", true)
        .Strings("tokens", {"a", "", "bcd"})
        .I32s("types", {3, -1, 5})
        .F32s("scores", {1.5f, -2.5f})
        .F32Tensor("norm", {3}, {1, 2, 3})
        .Tensor("matrix", WeightType::kQ8_0, {64, 8}, std::string(kMatrixBytes, '\x11'));
    return builder;
  }

  const int fd_ = memfd_create("gguf", MFD_CLOEXEC);
};

TEST_F(GgufFileTest, ReadsMetadataAndTensors) {
  const auto opened = Open(Good().Build());
  ASSERT_TRUE(opened.ok()) << opened.status();
  const GgufFile& file = **opened;
  EXPECT_EQ(*file.String("general.architecture"), "llama");
  EXPECT_EQ(*file.Uint("count"), 7u);
  EXPECT_EQ(*file.Uint("wide"), ~uint64_t{0});
  EXPECT_EQ(*file.Float("epsilon"), 0.25);
  EXPECT_TRUE(*file.Bool("yes"));
  EXPECT_THAT(*file.Strings("tokens"), ElementsAre("a", "", "bcd"));
  EXPECT_THAT(*file.Ints("types"), ElementsAre(3, -1, 5));
  EXPECT_THAT(*file.Floats("scores"), ElementsAre(1.5f, -2.5f));
  EXPECT_TRUE(file.Has("yes"));
  EXPECT_FALSE(file.Has("no"));

  ASSERT_EQ(file.tensors().size(), 2u);
  const GgufTensor* norm = file.Find("norm");
  ASSERT_NE(norm, nullptr);
  EXPECT_THAT(norm->dims, ElementsAre(3));
  EXPECT_EQ(norm->bytes, 12u);
  float values[3];
  std::memcpy(values, norm->data, sizeof(values));
  EXPECT_THAT(values, ElementsAre(1, 2, 3));
  const GgufTensor* matrix = file.Find("matrix");
  ASSERT_NE(matrix, nullptr);
  EXPECT_EQ(matrix->type, WeightType::kQ8_0);
  EXPECT_EQ(matrix->bytes, kMatrixBytes);
  EXPECT_EQ(matrix->data[kMatrixBytes - 1], std::byte{0x11});
  EXPECT_EQ(file.Find("other"), nullptr);

  file.DropResidentPages();
  EXPECT_EQ(matrix->data[0], std::byte{0x11});
}

TEST_F(GgufFileTest, GettersNameKeyAndType) {
  const auto opened = Open(Good().Build());
  ASSERT_TRUE(opened.ok()) << opened.status();
  const GgufFile& file = **opened;
  EXPECT_EQ(file.Uint("absent").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(file.Uint("below").status().message()), HasSubstr("'below' is negative"));
  EXPECT_THAT(std::string(file.Uint("epsilon").status().message()),
              HasSubstr("'epsilon' is float32, expected an integer"));
  EXPECT_THAT(std::string(file.Float("count").status().message()),
              HasSubstr("'count' is uint32, expected a float"));
  EXPECT_THAT(std::string(file.String("tokens").status().message()),
              HasSubstr("'tokens' is an array of string, expected a single value"));
  EXPECT_THAT(std::string(file.Ints("scores").status().message()),
              HasSubstr("'scores' is an array of float32, expected an array of integers"));
  EXPECT_EQ(file.Strings("yes").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(GgufFileTest, RefusesWhatItMustByName) {
  using absl::StatusCode;
  EXPECT_EQ(GgufFile::Open("/nonexistent/m.gguf").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(GgufFile::Open(::testing::TempDir()).status().code(), StatusCode::kInvalidArgument);
  ExpectError("", StatusCode::kInvalidArgument, "empty");
  ExpectError("GGML" + std::string(60, '\0'), StatusCode::kInvalidArgument, "not a GGUF file");

  std::string bytes = Good().Build();
  bytes[4] = 1;
  ExpectError(bytes, StatusCode::kUnimplemented, "GGUF version 1");
  bytes = Good().Build();
  std::swap(bytes[4], bytes[7]);
  ExpectError(bytes, StatusCode::kUnimplemented, "big-endian");
  bytes = Good().Build();
  bytes[15] = 0x7f;  // tensor count
  ExpectError(bytes, StatusCode::kInvalidArgument, "tensors cannot fit");

  ExpectError(Good().U32("count", 1).Build(), StatusCode::kInvalidArgument,
              "metadata 'count' appears twice");
  ExpectError(Good().U32("", 1).Build(), StatusCode::kInvalidArgument, "empty key");
  ExpectError(Good().Value("odd", 13, "abcd").Build(), StatusCode::kInvalidArgument,
              "'odd' has type 13");
  ExpectError(Good().Value("flag", 7, "\2").Build(), StatusCode::kInvalidArgument,
              "'flag' is the bool 2");
  ExpectError(Good().Array("nested", 9, 1, std::string(16, '\0')).Build(),
              StatusCode::kUnimplemented, "'nested' is an array of arrays");
  ExpectError(Good().Array("long", 5, uint64_t{1} << 62, "abcd").Build(),
              StatusCode::kInvalidArgument, "'long' needs 4611686018427387904 values");
  ExpectError(Good().U32("general.alignment", 24).Build(), StatusCode::kInvalidArgument,
              "general.alignment is 24");

  ExpectError(Good().F32Tensor("norm", {1}, {1}).Build(), StatusCode::kInvalidArgument,
              "tensor 'norm' appears twice");
  ExpectError(Good().RawTensor("t", 23, {256}, std::string(136, '\0')).Build(),
              StatusCode::kUnimplemented, "tensor 't' has type IQ4_XS");
  ExpectError(Good().RawTensor("t", 4, {256}, "").Build(), StatusCode::kInvalidArgument,
              "tensor 't' has type 4, which is not known");
  ExpectError(Good().RawTensor("t", 0, {}, "").Build(), StatusCode::kInvalidArgument,
              "tensor 't' has 0 dimensions");
  ExpectError(Good().RawTensor("t", 0, {4, 0}, "").Build(), StatusCode::kInvalidArgument,
              "tensor 't' has dimension 1 of 0");
  ExpectError(Good().RawTensor("t", 8, {48}, std::string(68, '\0')).Build(),
              StatusCode::kInvalidArgument, "rows of 48 values, which must be a multiple of 32");
  ExpectError(Good().RawTensor("t", 0, {1 << 30, 1 << 30, 1 << 30, 1 << 30}, "").Build(),
              StatusCode::kInvalidArgument, "tensor 't' does not fit in the file");
  // 3 x 2^30 x 2^30 x 2^4 values: 2^66 x 3 bytes wrap around to a small number in 64 bits.
  ExpectError(Good().RawTensor("t", 0, {1 << 30, 1 << 30, 16}, std::string(64, '\0')).Build(),
              StatusCode::kInvalidArgument, "tensor 't' does not fit in the file");
  ExpectError(Good().RawTensor("t", 0, {17}, std::string(64, '\0')).Build(),
              StatusCode::kInvalidArgument, "tensor 't' does not fit in the file");
}

TEST_F(GgufFileTest, EveryTruncationIsAnError) {
  const std::string bytes = Good().Build();
  ASSERT_EQ(bytes.size(), 4096u);
  for (size_t size = 0; size < bytes.size(); ++size) {
    ASSERT_FALSE(Open(bytes.substr(0, size)).ok()) << size << " of " << bytes.size();
  }
  EXPECT_TRUE(Open(bytes).ok());
}

// Reads everything a file offers; the sanitizers tell when that leaves the mapping.
uint64_t Touch(const GgufFile& file) {
  uint64_t sum = file.Fingerprint();
  for (const char* key : {"general.architecture", "count", "below", "wide", "epsilon", "yes",
                          "tokens", "types", "scores"}) {
    if (const auto value = file.Uint(key); value.ok()) sum += *value;
    if (const auto value = file.Bool(key); value.ok()) sum += *value;
    if (const auto value = file.Float(key); value.ok()) sum += *value != 0;
    if (const auto value = file.String(key); value.ok()) sum += value->size();
    if (const auto value = file.Ints(key); value.ok()) sum += value->size();
    if (const auto value = file.Floats(key); value.ok()) sum += value->size();
    const auto strings = file.Strings(key);
    if (!strings.ok()) continue;
    for (const absl::string_view text : *strings) {
      for (const char c : text) sum += static_cast<uint8_t>(c);
    }
  }
  for (const GgufTensor& tensor : file.tensors()) {
    for (size_t i = 0; i < tensor.bytes; ++i) sum += static_cast<uint8_t>(tensor.data[i]);
  }
  return sum;
}

// A byte outside the padding and the matrix, where damage changes nothing.
size_t Anywhere(std::mt19937* random, const std::string& bytes) {
  const size_t pad_start = bytes.find("....");
  const size_t pad_end = bytes.rfind("....") + 4;
  const size_t rest = bytes.find("\x11\x11\x11\x11") - (pad_end - pad_start);
  const size_t at = (*random)() % rest;
  return at < pad_start ? at : at + (pad_end - pad_start);
}

TEST_F(GgufFileTest, DamagedFilesNeverCrash) {
  const std::string good = Good().Build();
  std::mt19937 random(20240607);
  int opened = 0;
  uint64_t sum = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    const int flips = 1 + random() % 4;
    for (int i = 0; i < flips; ++i) {
      // Lengths, counts and types are where damage hurts: small values and bit flips by turns.
      char& byte = bytes[Anywhere(&random, bytes)];
      byte = random() % 2 != 0 ? byte ^ (1 << random() % 8) : static_cast<char>(random());
    }
    const auto file = Open(bytes);
    if (!file.ok()) continue;
    ++opened;
    sum += Touch(**file);
  }
  EXPECT_NE(sum, 0u);
  // Both outcomes must occur often, or the loop tests nothing.
  EXPECT_GT(opened, 1000);
  EXPECT_LT(opened, 19000);
}

TEST_F(GgufFileTest, FingerprintFollowsMetadataAndData) {
  const std::string bytes = Good().Build();
  const uint64_t original = (*Open(bytes))->Fingerprint();
  EXPECT_EQ((*Open(bytes))->Fingerprint(), original);
  std::string changed = bytes;
  changed[changed.size() - 30] ^= 1;  // in the last tensor's data
  EXPECT_NE((*Open(changed))->Fingerprint(), original);
  EXPECT_NE((*Open(Good().U32("more", 1).Build()))->Fingerprint(), original);
}

}  // namespace
}  // namespace strata
