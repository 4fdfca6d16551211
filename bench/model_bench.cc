// decode and prefill: a whole model over a ladder, without an engine.

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "bench/ladder.h"
#include "bench/measure.h"
#include "bench/sequence_runner.h"
#include "bench/suites.h"
#include "kernels/backend.h"
#include "model/model.h"

namespace strata::bench {
namespace {

constexpr int32_t kPieceTokens = 256;

struct Subject {
  Backend backend;
  std::unique_ptr<Model> model;
  std::vector<int32_t> tokens;  // enough for every depth
};

int32_t TokensNeeded(const BenchOptions& options) {
  const int32_t deepest = *std::max_element(options.depths.begin(), options.depths.end());
  return deepest + options.decode_tokens * (options.runs + 1) + 1;
}

absl::StatusOr<std::vector<int32_t>> TextTokens(const BenchOptions& options, const Model& model) {
  const int32_t count = TokensNeeded(options);
  if (count > model.config().context_length) {
    return absl::InvalidArgumentError(absl::StrCat("the deepest run needs ", count,
                                                   " tokens, the model's context is ",
                                                   model.config().context_length));
  }
  std::ifstream in(options.text, std::ios::binary);
  if (!in) return absl::NotFoundError(absl::StrCat("cannot read ", options.text));
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  STRATA_ASSIGN_OR_RETURN(
      const std::vector<TokenSpan> spans,
      model.tokenizer().Encode(absl::string_view(text).substr(0, size_t{8} * count), {}));
  if (spans.size() < static_cast<size_t>(count)) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.text, " has ", spans.size(), " tokens, ", count, " are needed"));
  }
  std::vector<int32_t> tokens(count);
  for (int32_t i = 0; i < count; ++i) tokens[i] = spans[i].id;
  return tokens;
}

absl::StatusOr<Subject> Load(const BenchOptions& options, bool reference) {
  Subject subject;
  if (reference) {
    subject.backend = CreateReferenceBackend();
  } else {
    STRATA_ASSIGN_OR_RETURN(subject.backend, CreateCpuBackend({.threads = options.threads}));
  }
  ModelOptions model;
  model.path = options.model;
  model.max_rows = kPieceTokens;
  STRATA_ASSIGN_OR_RETURN(subject.model, Model::Load(model, &subject.backend));
  STRATA_ASSIGN_OR_RETURN(subject.tokens, TextTokens(options, *subject.model));
  return subject;
}

// One admitted sequence on a cache of its own.
class Run {
 public:
  static absl::StatusOr<std::unique_ptr<Run>> Start(const BenchOptions& options, Subject* subject,
                                                    const Ladder& ladder) {
    auto run = std::unique_ptr<Run>(new Run);
    const int32_t tokens = static_cast<int32_t>(subject->tokens.size());
    STRATA_ASSIGN_OR_RETURN(run->cache_,
                            MakeLadderCache(*subject->model, &subject->backend, ladder,
                                            {.max_tokens = tokens,
                                             .piece_tokens = kPieceTokens,
                                             .cold_path = options.cold_dir,
                                             .stage_everything = options.stage_everything}));
    STRATA_ASSIGN_OR_RETURN(run->sequence_, run->cache_->Admit(tokens, ladder.policy));
    run->runner_ =
        std::make_unique<SequenceRunner>(subject->model.get(), run->cache_.get(), run->sequence_);
    return run;
  }
  ~Run() {
    if (cache_ != nullptr) cache_->Release(sequence_);
  }

  SequenceRunner& runner() { return *runner_; }
  SequenceUsage Usage() const { return cache_->Usage(sequence_); }

 private:
  Run() = default;
  std::unique_ptr<TieredCache> cache_;
  SequenceHandle sequence_ = 0;
  std::unique_ptr<SequenceRunner> runner_;
};

// The CPU backend's logits after a short prompt, against the reference kernels'.
absl::StatusOr<double> CheckAgainstReference(const BenchOptions& options, Subject* subject) {
  STRATA_ASSIGN_OR_RETURN(Subject reference, Load(options, /*reference=*/true));
  STRATA_ASSIGN_OR_RETURN(const Ladder exact, ParseLadder("f16"));
  std::vector<std::vector<float>> logits;
  for (Subject* each : {subject, &reference}) {
    STRATA_ASSIGN_OR_RETURN(auto run, Run::Start(options, each, exact));
    constexpr size_t kPrompt = 32;
    STRATA_RETURN_IF_ERROR(
        run->runner().Prefill(absl::MakeConstSpan(each->tokens).subspan(0, kPrompt)));
    STRATA_ASSIGN_OR_RETURN(const auto last, run->runner().Decode(each->tokens[kPrompt]));
    logits.emplace_back(last.begin(), last.end());
  }
  const double error = RelativeRms(logits[0], logits[1]);
  if (!(error < 0.02)) {
    return absl::InternalError(
        absl::StrCat("logits are off by ", error, " of the reference, limit 0.02"));
  }
  return error;
}

// What a decode step must read: all weights and, at their own width, all cached values.
double StepBytes(const Model& model, const SequenceUsage& usage) {
  double kv = 0;
  for (int i = 0; i < kTierCount; ++i) {
    kv += static_cast<double>(usage.tokens[i]) * usage.bits_per_value[i] / 8;
  }
  return static_cast<double>(model.weight_bytes()) +
         kv * static_cast<double>(model.config().Geometry().ValuesPerToken());
}

struct Depth {
  int32_t tokens;
  std::vector<float> logits;  // after the first decoded token
};

absl::StatusOr<nlohmann::json> DecodeLadder(const BenchOptions& options, Subject* subject,
                                            const Ladder& ladder, double bandwidth,
                                            std::vector<Depth>* exact) {
  STRATA_ASSIGN_OR_RETURN(auto run, Run::Start(options, subject, ladder));
  SequenceRunner& runner = run->runner();
  const auto tokens = absl::MakeConstSpan(subject->tokens);
  nlohmann::json rows = nlohmann::json::array();
  const bool first_ladder = exact->empty();
  for (size_t d = 0; d < options.depths.size(); ++d) {
    const int32_t depth = options.depths[d];
    if (depth > runner.position()) {
      STRATA_RETURN_IF_ERROR(
          runner.Prefill(tokens.subspan(runner.position(), depth - runner.position())));
    }
    STRATA_ASSIGN_OR_RETURN(const auto logits, runner.Decode(tokens[runner.position()]));
    if (first_ladder) exact->push_back({depth, {logits.begin(), logits.end()}});
    const double difference = RelativeRms(logits, (*exact)[d].logits);
    if (!(difference < 0.5)) {
      return absl::InternalError(absl::StrCat(ladder.name, " at depth ", depth, ": logits are ",
                                              difference, " off the first ladder's, limit 0.5"));
    }
    absl::Status status;
    const double seconds = MedianSeconds(options.runs, [&] {
      for (int32_t i = 0; i < options.decode_tokens; ++i) {
        status.Update(runner.Decode(tokens[runner.position()]).status());
      }
    });
    STRATA_RETURN_IF_ERROR(status);
    const SequenceUsage usage = run->Usage();
    const double rate = options.decode_tokens / seconds;
    const double bound = bandwidth / StepBytes(*subject->model, usage);
    rows.push_back({{"ladder", ladder.name},
                    {"depth", depth},
                    {"tokens_per_s", rate},
                    {"bound_tokens_per_s", bound},
                    {"of_bound", rate / bound},
                    {"bits_per_value", MeanBits(usage)},
                    {"logits_against_first_ladder", difference}});
  }
  return rows;
}

// The shape both benchmarks share: load, check, measure each ladder, report.
template <typename Measure>
absl::StatusOr<nlohmann::json> RunModelBench(const char* name, const BenchOptions& options,
                                             const Measure& measure) {
  BenchOptions sorted = options;
  std::sort(sorted.depths.begin(), sorted.depths.end());
  STRATA_ASSIGN_OR_RETURN(Subject subject, Load(sorted, /*reference=*/false));
  STRATA_ASSIGN_OR_RETURN(const double error, CheckAgainstReference(sorted, &subject));
  ThreadPool pool(options.threads);
  const double bandwidth = ReadBandwidth(&pool);
  nlohmann::json rows = nlohmann::json::array();
  for (const std::string& text : options.ladders) {
    STRATA_ASSIGN_OR_RETURN(const Ladder ladder, ParseLadder(text));
    STRATA_ASSIGN_OR_RETURN(const nlohmann::json part,
                            measure(sorted, &subject, ladder, bandwidth));
    rows.insert(rows.end(), part.begin(), part.end());
  }
  return nlohmann::json{{"benchmark", name},
                        {"backend", subject.backend.name},
                        {"threads", pool.threads()},
                        {"model", subject.model->config().name},
                        {"weight_bytes", subject.model->weight_bytes()},
                        {"read_bandwidth_bytes_per_s", bandwidth},
                        {"logits_against_reference", error},
                        {"rows", rows}};
}

absl::StatusOr<nlohmann::json> PrefillLadder(const BenchOptions& options, Subject* subject,
                                             const Ladder& ladder, double /*bandwidth*/) {
  nlohmann::json rows = nlohmann::json::array();
  for (const int32_t depth : options.depths) {
    if (depth == 0) continue;
    absl::Status status;
    std::vector<double> seconds;
    for (int i = 0; i < std::max(1, options.runs / 2) && status.ok(); ++i) {
      STRATA_ASSIGN_OR_RETURN(auto run, Run::Start(options, subject, ladder));
      seconds.push_back(Seconds([&] {
        status.Update(
            run->runner().Prefill(absl::MakeConstSpan(subject->tokens).subspan(0, depth)));
      }));
    }
    STRATA_RETURN_IF_ERROR(status);
    const double median = Median(seconds);
    rows.push_back({{"ladder", ladder.name},
                    {"tokens", depth},
                    {"seconds", median},
                    {"tokens_per_s", depth / median}});
  }
  return rows;
}

}  // namespace

absl::StatusOr<nlohmann::json> RunDecode(const BenchOptions& options) {
  std::vector<Depth> exact;
  return RunModelBench(
      "decode", options,
      [&](const BenchOptions& sorted, Subject* subject, const Ladder& ladder, double bandwidth) {
        return DecodeLadder(sorted, subject, ladder, bandwidth, &exact);
      });
}

absl::StatusOr<nlohmann::json> RunPrefill(const BenchOptions& options) {
  return RunModelBench("prefill", options, PrefillLadder);
}

}  // namespace strata::bench
