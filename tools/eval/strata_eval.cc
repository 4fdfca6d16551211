// strata-eval: what the tiers' formats cost a model's predictions.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "bench/ladder.h"
#include "bench/sequence_runner.h"
#include "kernels/backend.h"
#include "model/model.h"
#include "nlohmann/json.hpp"

namespace strata {
namespace {

using bench::Ladder;
using bench::SequenceRunner;

struct EvalOptions {
  std::string model;
  std::vector<std::string> texts;
  std::vector<std::string> ladders;
  std::string cold_path = "/tmp";
  int32_t context = 2048;     // tokens a piece of text
  int32_t pieces = 16;        // pieces of text, taken from the texts in turn
  int32_t piece_tokens = 64;  // prefill piece; 64 compares with block-wise oracles
  int threads = 0;
  std::string basis = "calibrated";
  bool reference = false;
  bool json = false;
};

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// Piece i is `context` tokens of text i % texts, from byte 30,000 + 60,000 * (i / texts) on: past
// the front matter, and never overlapping.
absl::StatusOr<std::vector<std::vector<int32_t>>> CutPieces(const EvalOptions& options,
                                                            const Tokenizer& tokenizer) {
  std::vector<std::string> texts;
  for (const std::string& path : options.texts) {
    STRATA_ASSIGN_OR_RETURN(texts.emplace_back(), ReadFile(path));
  }
  std::vector<std::vector<int32_t>> pieces;
  for (int32_t i = 0; i < options.pieces; ++i) {
    const size_t which = i % texts.size();
    const size_t start = 30000 + 60000 * (i / texts.size());
    const std::string& text = texts[which];
    if (start >= text.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(options.texts[which], " is too short for ", options.pieces, " pieces"));
    }
    STRATA_ASSIGN_OR_RETURN(
        const std::vector<TokenSpan> tokens,
        tokenizer.Encode(absl::string_view(text).substr(start, size_t{6} * options.context), {}));
    if (tokens.size() < static_cast<size_t>(options.context)) {
      return absl::InvalidArgumentError(absl::StrCat("piece ", i, " of ", options.texts[which],
                                                     " has only ", tokens.size(),
                                                     " tokens, context is ", options.context));
    }
    std::vector<int32_t>& piece = pieces.emplace_back();
    for (int32_t t = 0; t < options.context; ++t) piece.push_back(tokens[t].id);
  }
  return pieces;
}

// log(sum(exp(logits))), in double.
double LogSumExp(const float* logits, int32_t count) {
  const float top = *std::max_element(logits, logits + count);
  double sum = 0;
  for (int32_t i = 0; i < count; ++i) sum += std::exp(static_cast<double>(logits[i]) - top);
  return top + std::log(sum);
}

// One ladder's cache, open for one piece of text at a time.
class Lane {
 public:
  static absl::StatusOr<Lane> Open(const EvalOptions& options, Model* model, Backend* backend,
                                   const Ladder& ladder) {
    Lane lane(model, ladder);
    STRATA_ASSIGN_OR_RETURN(lane.cache_,
                            bench::MakeLadderCache(*model, backend, ladder,
                                                   {.max_tokens = options.context,
                                                    .piece_tokens = options.piece_tokens,
                                                    .cold_path = options.cold_path}));
    return lane;
  }

  absl::Status Begin() {
    STRATA_ASSIGN_OR_RETURN(sequence_, bench::AdmitWhenFree(cache_.get(), ladder_.policy));
    runner_ = std::make_unique<SequenceRunner>(model_, cache_.get(), sequence_);
    return absl::OkStatus();
  }
  void End() {
    bits_ = bench::MeanBits(cache_->Usage(sequence_));
    cache_->Release(sequence_);
  }

  SequenceRunner& runner() { return *runner_; }
  const Ladder& ladder() const { return ladder_; }
  double bits() const { return bits_; }  // a value, at the end of the last piece of text

 private:
  Lane(Model* model, const Ladder& ladder) : model_(model), ladder_(ladder) {}

  Model* model_;
  Ladder ladder_;
  std::unique_ptr<TieredCache> cache_;
  SequenceHandle sequence_ = 0;
  std::unique_ptr<SequenceRunner> runner_;
  double bits_ = 0;
};

struct Setup {
  Backend backend;
  std::unique_ptr<Model> model;
  std::vector<std::vector<int32_t>> pieces;
  std::vector<Ladder> ladders;
};

absl::StatusOr<Setup> Prepare(const EvalOptions& options) {
  Setup setup;
  for (const std::string& text : options.ladders) {
    STRATA_ASSIGN_OR_RETURN(setup.ladders.emplace_back(), bench::ParseLadder(text));
  }
  if (options.reference) {
    setup.backend = CreateReferenceBackend();
  } else {
    STRATA_ASSIGN_OR_RETURN(setup.backend, CreateCpuBackend({.threads = options.threads}));
  }
  ModelOptions model;
  model.path = options.model;
  model.max_rows = options.piece_tokens;
  model.calibrate_basis = options.basis == "calibrated";
  model.plain_basis = options.basis == "plain";
  STRATA_ASSIGN_OR_RETURN(setup.model, Model::Load(model, &setup.backend));
  if (options.context > setup.model->config().context_length) {
    return absl::InvalidArgumentError(absl::StrCat("context ", options.context,
                                                   " is above the model's ",
                                                   setup.model->config().context_length));
  }
  STRATA_ASSIGN_OR_RETURN(setup.pieces, CutPieces(options, setup.model->tokenizer()));
  return setup;
}

// Negative log-likelihoods of a piece's tokens 1..n-1, in nats.
absl::StatusOr<std::vector<double>> Losses(const Model& model, SequenceRunner& runner,
                                           const std::vector<int32_t>& tokens) {
  const int32_t vocab = model.config().vocab_size;
  std::vector<double> losses;
  STRATA_RETURN_IF_ERROR(runner.Prefill(tokens, [&](int32_t first, absl::Span<const float> logits) {
    const auto rows = static_cast<int32_t>(logits.size() / vocab);
    for (int32_t r = 0; r < rows; ++r) {
      const size_t next = first + r + 1;
      if (next >= tokens.size()) break;
      const float* row = logits.data() + size_t{1} * r * vocab;
      losses.push_back(LogSumExp(row, vocab) - row[tokens[next]]);
    }
  }));
  return losses;
}

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// Standard error of the mean of `values`; NaN for fewer than two.
double StandardError(const std::vector<double>& values) {
  const double mean = Mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const auto n = static_cast<double>(values.size());
  return std::sqrt(squares / (n - 1) / n);
}

absl::Status Perplexity(const EvalOptions& options) {
  STRATA_ASSIGN_OR_RETURN(Setup setup, Prepare(options));
  nlohmann::json results = nlohmann::json::array();
  std::vector<double> base;  // mean loss of each piece under the first ladder
  for (const Ladder& ladder : setup.ladders) {
    STRATA_ASSIGN_OR_RETURN(Lane lane,
                            Lane::Open(options, setup.model.get(), &setup.backend, ladder));
    std::vector<double> means;
    for (size_t i = 0; i < setup.pieces.size(); ++i) {
      STRATA_RETURN_IF_ERROR(lane.Begin());
      STRATA_ASSIGN_OR_RETURN(const std::vector<double> losses,
                              Losses(*setup.model, lane.runner(), setup.pieces[i]));
      lane.End();
      means.push_back(Mean(losses));
      std::fprintf(stderr, "\r%s: %zu of %zu pieces", ladder.name.c_str(), i + 1,
                   setup.pieces.size());
    }
    std::fprintf(stderr, "\n");
    if (base.empty()) base = means;
    std::vector<double> difference(means.size());
    for (size_t i = 0; i < means.size(); ++i) difference[i] = means[i] - base[i];
    results.push_back({{"ladder", ladder.name},
                       {"tokens", setup.pieces.size() * options.context},
                       {"context", options.context},
                       {"perplexity", std::exp(Mean(means))},
                       {"change_percent", 100 * (std::exp(Mean(difference)) - 1)},
                       {"change_standard_error", 100 * StandardError(difference)},
                       {"bits_per_value", lane.bits()}});
    if (!options.json) {
      const nlohmann::json& r = results.back();
      std::printf("%-28s perplexity %8.4f  against %s %+7.3f %% (s.e. %.3f)  %5.2f bits a value\n",
                  ladder.name.c_str(), r["perplexity"].get<double>(), setup.ladders[0].name.c_str(),
                  r["change_percent"].get<double>(), r["change_standard_error"].get<double>(),
                  r["bits_per_value"].get<double>());
      std::fflush(stdout);
    }
  }
  if (options.json) std::printf("%s\n", results.dump().c_str());
  return absl::OkStatus();
}

// How far one ladder's predictions are from the first one's over the same tokens.
struct Agreement {
  double kl_sum = 0;
  double kl_max = 0;
  int64_t same_argmax = 0;
  int64_t positions = 0;

  void Add(const float* base, const float* other, int32_t vocab) {
    const double base_norm = LogSumExp(base, vocab);
    const double other_norm = LogSumExp(other, vocab);
    double kl = 0;
    for (int32_t i = 0; i < vocab; ++i) {
      const double p = base[i] - base_norm;
      kl += std::exp(p) * (p - (other[i] - other_norm));
    }
    kl_sum += kl;
    kl_max = std::max(kl_max, kl);
    same_argmax += std::max_element(base, base + vocab) - base ==
                   std::max_element(other, other + vocab) - other;
    ++positions;
  }
};

// Runs both lanes over the text in lockstep, a piece at a time, so that only one piece's logits are
// ever held.
absl::Status CompareLanes(const EvalOptions& options, const Model& model, Lane& base, Lane& other,
                          absl::Span<const int32_t> tokens, Agreement* agreement) {
  STRATA_RETURN_IF_ERROR(base.Begin());
  STRATA_RETURN_IF_ERROR(other.Begin());
  const int32_t vocab = model.config().vocab_size;
  std::vector<float> kept;
  for (size_t at = 0; at < tokens.size(); at += options.piece_tokens) {
    const auto part = tokens.subspan(at, options.piece_tokens);
    STRATA_RETURN_IF_ERROR(base.runner().Prefill(
        part, [&](int32_t, absl::Span<const float> l) { kept.assign(l.begin(), l.end()); }));
    STRATA_RETURN_IF_ERROR(
        other.runner().Prefill(part, [&](int32_t, absl::Span<const float> logits) {
          for (size_t row = 0; row + vocab <= logits.size(); row += vocab) {
            agreement->Add(kept.data() + row, logits.data() + row, vocab);
          }
        }));
  }
  base.End();
  other.End();
  return absl::OkStatus();
}

absl::Status RunAgreement(const EvalOptions& options) {
  STRATA_ASSIGN_OR_RETURN(Setup setup, Prepare(options));
  STRATA_ASSIGN_OR_RETURN(const Ladder exact, bench::ParseLadder("f16"));
  STRATA_ASSIGN_OR_RETURN(Lane base, Lane::Open(options, setup.model.get(), &setup.backend, exact));
  nlohmann::json results = nlohmann::json::array();
  for (const Ladder& ladder : setup.ladders) {
    STRATA_ASSIGN_OR_RETURN(Lane lane,
                            Lane::Open(options, setup.model.get(), &setup.backend, ladder));
    Agreement agreement;
    for (size_t i = 0; i < setup.pieces.size(); ++i) {
      STRATA_RETURN_IF_ERROR(
          CompareLanes(options, *setup.model, base, lane, setup.pieces[i], &agreement));
      std::fprintf(stderr, "\r%s: %zu of %zu pieces", ladder.name.c_str(), i + 1,
                   setup.pieces.size());
    }
    std::fprintf(stderr, "\n");
    const auto positions = static_cast<double>(agreement.positions);
    results.push_back(
        {{"ladder", ladder.name},
         {"positions", agreement.positions},
         {"context", options.context},
         {"kl_nats_mean", agreement.kl_sum / positions},
         {"kl_nats_max", agreement.kl_max},
         {"greedy_match_percent", 100 * static_cast<double>(agreement.same_argmax) / positions},
         {"bits_per_value", lane.bits()}});
    if (!options.json) {
      const nlohmann::json& r = results.back();
      std::printf("%-28s KL %.5f nats (max %.3f)  same greedy token %6.2f %%  %5.2f bits a value\n",
                  ladder.name.c_str(), r["kl_nats_mean"].get<double>(),
                  r["kl_nats_max"].get<double>(), r["greedy_match_percent"].get<double>(),
                  r["bits_per_value"].get<double>());
      std::fflush(stdout);
    }
  }
  if (options.json) std::printf("%s\n", results.dump().c_str());
  return absl::OkStatus();
}

void AddOptions(CLI::App* command, EvalOptions* options) {
  command->add_option("--model", options->model, "GGUF model file")->required();
  command->add_option("--text", options->texts, "text files, used in turn")->required();
  command
      ->add_option("--ladder", options->ladders,
                   "how KV is spread over tiers: f16, i4, i2, k4v2, ladder:SINK,RECENT,WARM "
                   "(tokens), all-f16:SINK,RECENT,WARM; suffix +even; may be repeated")
      ->required();
  command->add_option("--context", options->context, "tokens a piece of text")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("--pieces", options->pieces, "pieces of text")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command->add_option("--piece-tokens", options->piece_tokens, "prefill piece, a multiple of 64")
      ->check(CLI::Range(64, 4096))
      ->capture_default_str();
  command->add_option("--cold-dir", options->cold_path, "directory for the cold store's file")
      ->capture_default_str();
  command->add_option("--threads", options->threads, "threads; 0: one a CPU")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_option("--basis", options->basis, "calibrated, vrot or plain")
      ->check(CLI::IsMember({"calibrated", "vrot", "plain"}))
      ->capture_default_str();
  command->add_flag("--reference", options->reference, "use the reference kernels (slow)");
  command->add_flag("--json", options->json, "one JSON array on stdout");
}

int Main(int argc, char** argv) {
  EvalOptions options;
  CLI::App app("strata-eval: what the tiers' formats cost a model's predictions");
  app.require_subcommand(1);
  CLI::App* perplexity =
      app.add_subcommand("perplexity", "perplexity under each ladder, next to the first one's");
  CLI::App* agreement = app.add_subcommand(
      "agreement", "KL divergence and greedy-token match of each ladder against f16");
  AddOptions(perplexity, &options);
  AddOptions(agreement, &options);
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = perplexity->parsed() ? Perplexity(options) : RunAgreement(options);
  if (!status.ok()) {
    std::fprintf(stderr, "strata-eval: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) { return strata::Main(argc, argv); }
