#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "model/flat_kv.h"
#include "model/model.h"

namespace strata {

// A model and a flat cache, for tests that only want logits. A failure aborts the test.
class ModelHarness {
 public:
  ModelHarness(Model* model, int32_t sequences, int32_t max_tokens,
               DeviceMemory* memory = HostMemory())
      : model_(model) {
    auto kv = FlatKv::Create(model->config().Geometry(), sequences, max_tokens, memory);
    kv_ = *std::move(kv);
  }

  FlatKv& kv() { return *kv_; }

  struct Input {
    int32_t sequence = 0;
    std::vector<int32_t> tokens;
  };

  // One step over the inputs' tokens; logits of the wanted rows (of all rows by default).
  std::vector<std::vector<float>> Step(const std::vector<Input>& inputs,
                                       const std::vector<int32_t>* wanted = nullptr) {
    std::vector<int32_t> tokens;
    std::vector<int32_t> positions;
    std::vector<FlatKv::Piece> pieces;
    for (const Input& input : inputs) {
      pieces.push_back({input.sequence, static_cast<int32_t>(input.tokens.size())});
      for (const int32_t token : input.tokens) {
        positions.push_back(kv_->tokens(input.sequence) + static_cast<int32_t>(tokens.size()) -
                            FirstRow(pieces));
        tokens.push_back(token);
      }
    }
    std::vector<int32_t> rows;
    for (size_t i = 0; wanted == nullptr && i < tokens.size(); ++i) rows.push_back(i);
    if (wanted != nullptr) rows = *wanted;
    const size_t vocabulary = model_->config().vocab_size;
    std::vector<float> logits(rows.size() * vocabulary);
    kv_->BeginStep(pieces);
    const absl::Status status =
        model_->Forward({tokens, positions, rows}, kv_.get(), logits.data());
    EXPECT_TRUE(status.ok()) << status;
    std::vector<std::vector<float>> result;
    for (size_t i = 0; i < rows.size(); ++i) {
      result.emplace_back(logits.begin() + i * vocabulary, logits.begin() + (i + 1) * vocabulary);
    }
    return result;
  }
  // The same for one sequence.
  std::vector<std::vector<float>> Step(int32_t sequence, const std::vector<int32_t>& tokens) {
    return Step({{sequence, tokens}});
  }
  // Prefills in pieces of at most `rows`; logits of the last token.
  std::vector<float> Prefill(int32_t sequence, const std::vector<int32_t>& tokens, int32_t rows) {
    std::vector<float> last;
    for (size_t start = 0; start < tokens.size(); start += rows) {
      const size_t end = std::min(tokens.size(), start + rows);
      std::vector<int32_t> wanted;
      if (end == tokens.size()) wanted.push_back(static_cast<int32_t>(end - start) - 1);
      const auto logits =
          Step({{sequence, {tokens.begin() + start, tokens.begin() + end}}}, &wanted);
      if (!logits.empty()) last = logits[0];
    }
    return last;
  }

 private:
  // The row at which the last piece begins.
  static int32_t FirstRow(const std::vector<FlatKv::Piece>& pieces) {
    int32_t row = 0;
    for (size_t i = 0; i + 1 < pieces.size(); ++i) row += pieces[i].rows;
    return row;
  }

  Model* model_;
  std::unique_ptr<FlatKv> kv_;
};

}  // namespace strata
