#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/linear_ops.h"

namespace strata {

// Writes GGUF files for tests: metadata and tensors in the order given, exactly as told, so that it
// makes broken files as readily as good ones.
class GgufBuilder {
 public:
  GgufBuilder& U32(const std::string& key, uint32_t value) { return Value(key, 4, Bytes(value)); }
  GgufBuilder& I32(const std::string& key, int32_t value) { return Value(key, 5, Bytes(value)); }
  GgufBuilder& U64(const std::string& key, uint64_t value) { return Value(key, 10, Bytes(value)); }
  GgufBuilder& F32(const std::string& key, float value) { return Value(key, 6, Bytes(value)); }
  GgufBuilder& Bool(const std::string& key, bool value) {
    return Value(key, 7, std::string(1, value ? '\1' : '\0'));
  }
  GgufBuilder& String(const std::string& key, const std::string& value) {
    return Value(key, 8, Text(value));
  }
  GgufBuilder& Strings(const std::string& key, const std::vector<std::string>& values) {
    std::string bytes;
    for (const std::string& value : values) bytes += Text(value);
    return Array(key, 8, values.size(), bytes);
  }
  GgufBuilder& I32s(const std::string& key, const std::vector<int32_t>& values) {
    return Array(key, 5, values.size(), BytesOf(values));
  }
  GgufBuilder& F32s(const std::string& key, const std::vector<float>& values) {
    return Array(key, 6, values.size(), BytesOf(values));
  }
  GgufBuilder& Array(const std::string& key, uint32_t type, uint64_t count,
                     const std::string& bytes) {
    return Value(key, 9, Bytes(type) + Bytes(count) + bytes);
  }
  // `type` is GGUF's number of the value's type.
  GgufBuilder& Value(const std::string& key, uint32_t type, const std::string& bytes) {
    if (skipped_.count(key) != 0) return *this;
    values_ += Text(key) + Bytes(type) + bytes;
    ++value_count_;
    return *this;
  }

  // dims[0] is the fastest.
  GgufBuilder& Tensor(const std::string& name, WeightType type, const std::vector<int64_t>& dims,
                      std::string data) {
    return RawTensor(name, TypeId(type), dims, std::move(data));
  }
  GgufBuilder& F32Tensor(const std::string& name, const std::vector<int64_t>& dims,
                         const std::vector<float>& values) {
    return Tensor(name, WeightType::kF32, dims, BytesOf(values));
  }
  GgufBuilder& RawTensor(const std::string& name, uint32_t type, const std::vector<int64_t>& dims,
                         std::string data) {
    if (skipped_.count(name) != 0) return *this;
    table_ += Text(name) + Bytes(static_cast<uint32_t>(dims.size())) + BytesOf(dims) + Bytes(type) +
              Bytes(uint64_t{data_.size()});
    ++tensor_count_;
    data_ += data;
    data_.resize((data_.size() + kAlignment - 1) / kAlignment * kAlignment);
    return *this;
  }

  // Metadata and tensors of that name are left out from now on.
  GgufBuilder& Skip(const std::string& name) {
    skipped_.insert(name);
    return *this;
  }

  std::string Build() const {
    std::string file = "GGUF" + Bytes(uint32_t{3}) + Bytes(tensor_count_) + Bytes(value_count_);
    file += values_ + table_;
    file.resize((file.size() + kAlignment - 1) / kAlignment * kAlignment);
    return file + data_;
  }
  void WriteTo(const std::string& path) const { std::ofstream(path, std::ios::binary) << Build(); }

  template <typename T>
  static std::string Bytes(T value) {
    std::string bytes(sizeof(T), '\0');
    std::memcpy(bytes.data(), &value, sizeof(T));
    return bytes;
  }
  static std::string Text(const std::string& text) { return Bytes(uint64_t{text.size()}) + text; }
  template <typename T>
  static std::string BytesOf(const std::vector<T>& values) {
    std::string bytes;
    for (const T& value : values) bytes += Bytes(value);
    return bytes;
  }

 private:
  static constexpr size_t kAlignment = 32;

  static uint32_t TypeId(WeightType type) {
    switch (type) {
      case WeightType::kF32:
        return 0;
      case WeightType::kF16:
        return 1;
      case WeightType::kBF16:
        return 30;
      case WeightType::kQ8_0:
        return 8;
      case WeightType::kQ4_0:
        return 2;
      case WeightType::kQ4_1:
        return 3;
      case WeightType::kQ5_0:
        return 6;
      case WeightType::kQ5_1:
        return 7;
      case WeightType::kQ4_K:
        return 12;
      case WeightType::kQ5_K:
        return 13;
      case WeightType::kQ6_K:
        return 14;
    }
    return ~0u;
  }

  std::set<std::string> skipped_;
  std::string values_;
  std::string table_;
  std::string data_;
  uint64_t value_count_ = 0;
  uint64_t tensor_count_ = 0;
};

}  // namespace strata
