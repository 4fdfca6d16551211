#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/basis_store.h"
#include "model/calibration.h"
#include "model/model.h"
#include "tests/model/model_harness.h"
#include "tests/testing/test_folder.h"
#include "tests/testing/tiny_model.h"

namespace strata {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class BasisTest : public ::testing::Test {
 protected:
  static std::string Read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void Write(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  const TestFolder folder_;
};

// d = (E q^2 / Var k)^(1/4), up to a factor a head: worked out by hand for channels that differ in
// one of the two.
TEST_F(BasisTest, ScalesFollowTheFormula) {
  const KvGeometry geometry = {1, 2, 16};
  BasisMoments moments(geometry);
  // Two query heads a KV head. Channel 1's queries are 4 times as large (16 times for the second KV
  // head), channel 2's keys 9 times, and channel 3's keys have a mean, which must not count.
  std::vector<float> q(4 * 16, 1.0f);
  for (int h = 0; h < 4; ++h) q[h * 16 + 1] = h < 2 ? 4 : 16;
  for (int i = 0; i < 10; ++i) moments.AddQueries(0, 4, q.data());
  std::vector<float> k(64 * 16);
  for (int t = 0; t < 64; ++t) {
    for (int c = 0; c < 16; ++c) k[t * 16 + c] = t % 2 == 0 ? 1.0f : -1.0f;
    k[t * 16 + 2] *= 9;
    k[t * 16 + 3] += 5;
  }
  moments.AddKeys(0, 0, k.data());
  moments.AddKeys(0, 1, k.data());
  const std::vector<float> d = moments.Scales();
  ASSERT_EQ(d.size(), 32u);
  for (const int head : {0, 16}) {
    EXPECT_FLOAT_EQ(d[head + 1] / d[head], head == 0 ? 2 : 4);  // (4^2)^(1/4), (16^2)^(1/4)
    EXPECT_FLOAT_EQ(d[head + 2] / d[head], 1 / 3.0f);           // (9^2)^(-1/4)
    EXPECT_FLOAT_EQ(d[head + 3] / d[head], 1);
    double product = 1;
    for (int c = 0; c < 16; ++c) product *= d[head + c];
    EXPECT_NEAR(product, 1, 1e-5);
  }
}

TEST_F(BasisTest, ScalesAreSaneWhateverWasMeasured) {
  const KvGeometry geometry = {1, 1, 16};
  std::vector<float> q(16, 1.0f);
  std::vector<float> k(64 * 16);
  for (size_t i = 0; i < k.size(); ++i) k[i] = i / 16 % 2 == 0 ? 1.0f : -1.0f;
  const auto set_channel = [&](int c, float even, float odd) {
    for (int t = 0; t < 64; ++t) k[t * 16 + c] = t % 2 == 0 ? even : odd;
  };
  q[0] = 0;
  q[1] = 1e30f;
  q[2] = std::nanf("");
  set_channel(3, 0, 0);
  set_channel(4, 1e-30f, -1e-30f);
  set_channel(5, 100, 100);  // a bias and nothing else
  set_channel(6, INFINITY, 0);
  BasisMoments moments(geometry);
  moments.AddQueries(0, 1, q.data());
  moments.AddKeys(0, 0, k.data());
  for (const float d : moments.Scales()) {
    EXPECT_GE(d, 1 / BasisMoments::kMaxScale);
    EXPECT_LE(d, BasisMoments::kMaxScale);
  }
  EXPECT_THAT(BasisMoments(geometry).Scales(), ::testing::Each(1.0f));
}

TEST_F(BasisTest, FilesReturnWhatWasWrittenOrNothing) {
  const KvGeometry geometry = {2, 1, 16};
  KvBasis basis{geometry, true, true, std::vector<float>(32)};
  for (int i = 0; i < 32; ++i) basis.k_scale[i] = 0.5f + static_cast<float>(i);
  const std::string path = folder_.Path("deep/er/m.kvbasis");
  KvMeasurement kept = {basis, {0.25f, 0.0f}};
  ASSERT_TRUE(WriteBasisFile(path, 42, kept).ok());
  const auto read = ReadBasisFile(path, 42, geometry);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->basis.k_scale, basis.k_scale);
  EXPECT_EQ(read->basis.Hash(), basis.Hash());
  EXPECT_EQ(read->k_errors, kept.k_errors);

  EXPECT_EQ(ReadBasisFile(path + "x", 42, geometry).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(ReadBasisFile(path, 43, geometry).status().message()),
              HasSubstr("another model"));
  EXPECT_THAT(std::string(ReadBasisFile(path, 42, {1, 2, 16}).status().message()),
              HasSubstr("another shape"));
  const std::string bytes = Read(path);
  for (size_t size = 0; size < bytes.size(); ++size) {
    Write(path, bytes.substr(0, size));
    EXPECT_FALSE(ReadBasisFile(path, 42, geometry).ok()) << size;
  }
  Write(path, bytes + "x");
  EXPECT_THAT(std::string(ReadBasisFile(path, 42, geometry).status().message()),
              HasSubstr("has more"));
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] ^= static_cast<char>(1 << i % 8);
    Write(path, damaged);
    EXPECT_FALSE(ReadBasisFile(path, 42, geometry).ok()) << i;
  }
  Write(path, bytes);
  EXPECT_TRUE(ReadBasisFile(path, 42, geometry).ok());

  kept.basis.k_scale[3] = -1;  // a valid checksum does not make it a measurement
  ASSERT_TRUE(WriteBasisFile(path, 42, kept).ok());
  EXPECT_FALSE(ReadBasisFile(path, 42, geometry).ok());
  kept = {basis, {0.25f, std::nanf("")}};
  ASSERT_TRUE(WriteBasisFile(path, 42, kept).ok());
  EXPECT_FALSE(ReadBasisFile(path, 42, geometry).ok());
  EXPECT_FALSE(WriteBasisFile("/proc/nowhere/m.kvbasis", 42, kept).ok());
}

TEST_F(BasisTest, IsMeasuredOnceAndFoundAgain) {
  const std::string path = folder_.Path("tiny.gguf");
  WriteTinyModel({}, path);
  Backend backend = CreateReferenceBackend();
  ModelOptions options;
  options.path = path;
  const auto measured = Model::Load(options, &backend);
  ASSERT_TRUE(measured.ok()) << measured.status();
  const KvBasis& basis = (*measured)->basis();
  EXPECT_TRUE(basis.rotate_k);
  EXPECT_TRUE(basis.rotate_v);
  ASSERT_EQ(basis.k_scale.size(), 2u * 2 * 32);
  EXPECT_NE(basis.k_scale[0], basis.k_scale[1]);
  const std::vector<float> k_errors((*measured)->k_errors().begin(), (*measured)->k_errors().end());
  ASSERT_EQ(k_errors.size(), 2u);
  EXPECT_GT(k_errors[0], 0);
  EXPECT_GT(k_errors[1], 0);
  EXPECT_THAT((*measured)->load_notes(), Contains(HasSubstr("measured the K basis")));
  EXPECT_THAT(Files(), ::testing::UnorderedElementsAre("tiny.gguf", "tiny.gguf.kvbasis"));

  const auto again = Model::Load(options, &backend);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->basis().Hash(), basis.Hash());
  EXPECT_THAT((*again)->k_errors(), ::testing::ElementsAreArray(k_errors));
  EXPECT_THAT((*again)->load_notes(), Contains(HasSubstr("read the K basis from")));

  std::string bytes = Read(path + ".kvbasis");
  bytes[50] ^= 1;
  Write(path + ".kvbasis", bytes);
  const auto repaired = Model::Load(options, &backend);
  ASSERT_TRUE(repaired.ok()) << repaired.status();
  EXPECT_EQ((*repaired)->basis().Hash(), basis.Hash());
  EXPECT_THAT((*repaired)->load_notes(), Contains(HasSubstr("warning: basis file")));
  EXPECT_TRUE(ReadBasisFile(path + ".kvbasis", (*measured)->fingerprint(), basis.geometry).ok());

  options.basis_cache_dir = folder_.Path("cache");
  ASSERT_TRUE(Model::Load(options, &backend).ok());
  ASSERT_EQ(std::distance(fs::directory_iterator(folder_.Path("cache")), {}), 1);
}

TEST_F(BasisTest, CannotBeKeptNorMeasuredIsNotFatal) {
  const std::string path = folder_.Path("tiny.gguf");
  WriteTinyModel({}, path);
  Backend backend = CreateReferenceBackend();
  ModelOptions options;
  options.path = path;
  options.basis_cache_dir = "/proc/nowhere";
  const auto unkept = Model::Load(options, &backend);
  ASSERT_TRUE(unkept.ok()) << unkept.status();
  EXPECT_TRUE((*unkept)->basis().rotate_k);
  EXPECT_THAT((*unkept)->load_notes(), Contains(HasSubstr("cannot be kept")));

  TinyModelOptions short_context;
  short_context.context_length = 128;
  WriteTinyModel(short_context, path);
  const auto unmeasured = Model::Load(options, &backend);
  ASSERT_TRUE(unmeasured.ok()) << unmeasured.status();
  EXPECT_FALSE((*unmeasured)->basis().rotate_k);
  EXPECT_TRUE((*unmeasured)->k_errors().empty());
  EXPECT_TRUE((*unmeasured)->basis().rotate_v);
  EXPECT_THAT((*unmeasured)->load_notes(), Contains(HasSubstr("K is stored unrotated")));
}

TEST_F(BasisTest, CandidatesAreOrdered) {
  setenv("XDG_CACHE_HOME", "/xdg", 1);
  EXPECT_THAT(BasisFileCandidates("/models/m.gguf", "", 0xabc),
              ::testing::ElementsAre("/models/m.gguf.kvbasis",
                                     "/xdg/strata/m.gguf.0000000000000abc.kvbasis"));
  EXPECT_THAT(BasisFileCandidates("/models/m.gguf", "/cache", 0xabc),
              ::testing::ElementsAre("/cache/m.gguf.0000000000000abc.kvbasis"));
  unsetenv("XDG_CACHE_HOME");
}

// The scales leave no trace in logits, so what is stored is looked at: H keeps a vector's length,
// so each K in the cache is as long as d k. F16 rounds each of 32 channels by 2^-11 at most.
TEST_F(BasisTest, EachLayerStoresKByItsOwnScales) {
  const std::string path = folder_.Path("tiny.gguf");
  WriteTinyModel({}, path);
  Backend backend = CreateReferenceBackend();
  ModelOptions options;
  options.path = path;
  const auto measured = Model::Load(options, &backend);
  options.plain_basis = true;
  const auto plain = Model::Load(options, &backend);
  ASSERT_TRUE(measured.ok() && plain.ok());
  std::vector<int32_t> tokens(kBlockTokens);
  for (int32_t i = 0; i < kBlockTokens; ++i) tokens[i] = i * 7 % 250;
  ModelHarness stored(measured->get(), 1, 64);
  ModelHarness exact(plain->get(), 1, 64);
  stored.Step(0, tokens);
  exact.Step(0, tokens);
  const KvGeometry geometry = (*plain)->config().Geometry();
  const size_t values = size_t{1} * geometry.kv_heads * kBlockTokens * geometry.head_dim;
  std::vector<float> k(values), k_exact(values), v(values);
  for (int32_t layer = 0; layer < geometry.layers; ++layer) {
    const auto decode = [&](FlatKv& kv, float* out) {
      PageCodec::Decode(kv.format(), KvKind::kF16, KvKind::kF16, kv.Page(0, layer, 0), nullptr, out,
                        v.data());
    };
    decode(stored.kv(), k.data());
    decode(exact.kv(), k_exact.data());
    const float* d = (*measured)->basis().KScale(layer);
    for (int32_t row = 0; row < geometry.kv_heads * kBlockTokens; ++row) {
      const float* scale = d + row / kBlockTokens * geometry.head_dim;
      double length = 0;
      double expected = 0;
      for (int32_t c = 0; c < geometry.head_dim; ++c) {
        const size_t i = size_t{1} * row * geometry.head_dim + c;
        length += std::pow(k[i], 2);
        expected += std::pow(scale[c] * k_exact[i], 2);
      }
      ASSERT_NEAR(std::sqrt(length / expected), 1, 2e-3) << layer << " " << row;
    }
  }
}

// B1: any basis gives the same logits but for F16 rounding. The rotated K and V round differently,
// each by 1.6e-4 rms, so the bound is that of the comparison with the plain pass, twice.
TEST_F(BasisTest, DoesNotChangeLogits) {
  TinyModelOptions tiny;
  tiny.type = WeightType::kF32;
  const std::string path = folder_.Path("tiny.gguf");
  WriteTinyModel(tiny, path);
  std::vector<int32_t> tokens;
  for (int i = 0; i < 100; ++i) tokens.push_back(i * 7 % 250);
  const auto logits = [&](bool plain) {
    Backend backend = CreateReferenceBackend();
    ModelOptions options;
    options.path = path;
    options.plain_basis = plain;
    const auto model = Model::Load(options, &backend);
    EXPECT_TRUE(model.ok()) << model.status();
    EXPECT_NE((*model)->basis().rotate_k, plain);
    return ModelHarness(model->get(), 1, 128).Step(0, tokens);
  };
  const auto plain = logits(true);
  const auto rotated = logits(false);
  double error = 0;
  double power = 0;
  for (size_t t = 0; t < plain.size(); ++t) {
    for (size_t i = 0; i < plain[t].size(); ++i) {
      error += std::pow(plain[t][i] - rotated[t][i], 2);
      power += std::pow(plain[t][i], 2);
    }
  }
  EXPECT_LT(std::sqrt(error / power), 2e-3);
  EXPECT_GT(error, 0);
}

}  // namespace
}  // namespace strata
