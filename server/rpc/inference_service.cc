#include "server/rpc/inference_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "google/protobuf/util/time_util.h"
#include "grpcpp/grpcpp.h"
#include "server/rpc/cache_reports.h"
#include "server/rpc/errors.h"
#include "server/rpc/generate_call.h"
#include "server/rpc/status_to_grpc.h"
#include "server/rpc/supported_fields.h"
#include "server/rpc/utf8.h"
#include "strata/v1/inference.grpc.pb.h"

namespace strata::rpc {
namespace {

using google::protobuf::util::TimeUtil;

// gRPC tells deadlines by the wall clock, the engine by the steady one.
std::optional<Clock::TimePoint> DeadlineOf(const grpc::CallbackServerContext& context,
                                           const Clock& clock) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return std::nullopt;
  const auto left = deadline - std::chrono::system_clock::now();
  if (left > std::chrono::hours(24 * 366)) return std::nullopt;
  return clock.Now() + std::chrono::duration_cast<Clock::TimePoint::duration>(left);
}

// Owns itself until gRPC is done with it; wake-ups that come later find it gone.
class StreamReactor final : public grpc::ServerWriteReactor<v1::GenerateEvent>,
                            public std::enable_shared_from_this<StreamReactor> {
 public:
  static StreamReactor* Start(const CallEnvironment& environment,
                              grpc::CallbackServerContext* context,
                              const v1::GenerateRequest& request) {
    auto reactor = std::make_shared<StreamReactor>();
    reactor->self_ = reactor;
    const std::weak_ptr<StreamReactor> weak = reactor;
    reactor->call_ = std::make_shared<GenerateCall>(environment, [weak] {
      if (const auto alive = weak.lock()) alive->Pump();
    });
    reactor->call_->Start(request, DeadlineOf(*context, *environment.clock));
    return reactor.get();
  }

  void OnCancel() override { call_->Cancel(); }
  void OnWriteDone(bool ok) override {
    if (!ok) call_->Cancel();
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      broken_ |= !ok;
    }
    Pump();
  }
  void OnDone() override {
    call_->Leave();
    self_.reset();
  }

 private:
  void Pump() {
    absl::MutexLock lock(&mutex_);
    while (!writing_ && !finished_) {
      absl::Status end;
      switch (call_->Take(&event_, &end)) {
        case GenerateCall::Taken::kNothing:
          return;
        case GenerateCall::Taken::kEvent:
          if (broken_) continue;  // nobody reads any more
          writing_ = true;
          StartWrite(&event_);
          return;
        case GenerateCall::Taken::kEnd:
          finished_ = true;
          Finish(ToGrpcStatus(end));
          return;
      }
    }
  }

  std::shared_ptr<StreamReactor> self_;
  std::shared_ptr<GenerateCall> call_;
  absl::Mutex mutex_;
  v1::GenerateEvent event_ ABSL_GUARDED_BY(mutex_);  // gRPC reads it while writing_
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

// The same for one answer: takes nothing until the call has ended.
class OnceReactor final : public grpc::ServerUnaryReactor,
                          public std::enable_shared_from_this<OnceReactor> {
 public:
  static OnceReactor* Start(const CallEnvironment& environment,
                            grpc::CallbackServerContext* context,
                            const v1::GenerateRequest& request, v1::GenerateResult* result) {
    auto reactor = std::make_shared<OnceReactor>();
    reactor->self_ = reactor;
    reactor->result_ = result;
    const std::weak_ptr<OnceReactor> weak = reactor;
    reactor->call_ = std::make_shared<GenerateCall>(environment, [weak] {
      if (const auto alive = weak.lock()) alive->Pump();
    });
    reactor->call_->Start(request, DeadlineOf(*context, *environment.clock));
    return reactor.get();
  }

  void OnCancel() override { call_->Cancel(); }
  void OnDone() override {
    call_->Leave();
    self_.reset();
  }

 private:
  void Pump() {
    absl::MutexLock lock(&mutex_);
    absl::Status end;
    if (finished_ || call_->TakeAll(result_, &end) != GenerateCall::Taken::kEnd) return;
    finished_ = true;
    Finish(ToGrpcStatus(end));
  }

  std::shared_ptr<OnceReactor> self_;
  std::shared_ptr<GenerateCall> call_;
  v1::GenerateResult* result_ = nullptr;
  absl::Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

class InferenceService final : public v1::InferenceService::CallbackService {
 public:
  InferenceService(const CallEnvironment& environment, ServerFacts facts)
      : environment_(environment), facts_(std::move(facts)), start_(environment_.clock->Now()) {}

  grpc::ServerWriteReactor<v1::GenerateEvent>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override {
    return StreamReactor::Start(environment_, context, *request);
  }
  grpc::ServerUnaryReactor* GenerateOnce(grpc::CallbackServerContext* context,
                                         const v1::GenerateRequest* request,
                                         v1::GenerateResult* result) override {
    return OnceReactor::Start(environment_, context, *request, result);
  }
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override {
    return OffThread(context, [this, request, response] { return Encode(*request, response); });
  }
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override {
    return OffThread(context, [this, request, response] { return Decode(*request, response); });
  }
  grpc::ServerUnaryReactor* RenderChat(grpc::CallbackServerContext* context,
                                       const v1::RenderChatRequest*,
                                       v1::RenderChatResponse*) override {
    return Answer(context, UnsupportedField("RenderChat", ""));
  }
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest*,
                                       v1::ListModelsResponse* response) override {
    const auto model = environment_.state->Model();
    if (model.ok()) *response->add_models() = Describe(**model);
    return Answer(context, model.status());
  }
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest*,
                                          v1::ServerInfo* response) override {
    Describe(response);
    return Answer(context, absl::OkStatus());
  }

 private:
  // Runs `body` on the tokenizing thread and finishes with its status. gRPC keeps the request and
  // the response until then.
  grpc::ServerUnaryReactor* OffThread(grpc::CallbackServerContext* context,
                                      std::function<absl::Status()> body) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const bool posted = environment_.tokenizing->Post(
        [reactor, body = std::move(body)] { reactor->Finish(ToGrpcStatus(body())); });
    if (posted) return reactor;
    return Answer(context,
                  DescribeEngineError(absl::ResourceExhaustedError("too many texts are waiting"),
                                      {{"tokenizing", "the queue is full"}}));
  }

  absl::Status Encode(const v1::TokenizeRequest& request, v1::TokenizeResponse* response) const;
  absl::Status Decode(const v1::DetokenizeRequest& request, v1::DetokenizeResponse* response) const;
  v1::ModelInfo Describe(const ServedModel& model) const;
  void Describe(v1::ServerInfo* response) const;

  const CallEnvironment environment_;
  const ServerFacts facts_;
  const Clock::TimePoint start_;
};

absl::Status InferenceService::Encode(const v1::TokenizeRequest& request,
                                      v1::TokenizeResponse* response) const {
  STRATA_ASSIGN_OR_RETURN(const auto model, environment_.state->Find(request.model()));
  STRATA_RETURN_IF_ERROR(CheckSupported(request));
  if (!request.has_text()) return InvalidField("input", "text must be set");
  STRATA_RETURN_IF_ERROR(CheckTextLength("text", request.text().size(), *model));
  EncodeOptions options;
  if (request.has_add_special()) options.add_special = request.add_special();
  options.parse_special = request.parse_special();
  STRATA_ASSIGN_OR_RETURN(const std::vector<TokenSpan> spans,
                          model->tokenizer->Encode(request.text(), options));
  for (const TokenSpan& span : spans) {
    auto* token = response->add_tokens();
    token->set_id(static_cast<uint32_t>(span.id));
    token->set_bytes(model->tokenizer->TokenBytes(span.id, /*show_special=*/true));
    token->set_start(span.start);
    token->set_end(span.end);
  }
  response->set_count(static_cast<uint32_t>(spans.size()));
  return absl::OkStatus();
}

absl::Status InferenceService::Decode(const v1::DetokenizeRequest& request,
                                      v1::DetokenizeResponse* response) const {
  STRATA_ASSIGN_OR_RETURN(const auto model, environment_.state->Find(request.model()));
  STRATA_RETURN_IF_ERROR(CheckSupported(request));
  if (request.ids_size() > model->context_length) {
    return InvalidField("ids", absl::StrCat(request.ids_size(), " ids are more than the context",
                                            " holds, ", model->context_length));
  }
  std::vector<int32_t> ids;
  ids.reserve(static_cast<size_t>(request.ids_size()));
  for (const uint32_t id : request.ids()) {
    if (id >= static_cast<uint32_t>(model->vocab_size)) {
      return InvalidField("ids", absl::StrFormat("%d is not below the vocabulary's size, %d", id,
                                                 model->vocab_size));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  const bool skip = !request.has_skip_special() || request.skip_special();
  const std::string bytes = model->tokenizer->Decode(ids, /*show_special=*/!skip);
  response->set_bytes(bytes);
  response->set_text(ToValidUtf8(bytes));
  return absl::OkStatus();
}

v1::ModelInfo InferenceService::Describe(const ServedModel& model) const {
  v1::ModelInfo info;
  info.set_name(model.name);
  info.set_architecture(model.architecture);
  info.set_context_length(static_cast<uint32_t>(model.context_length));
  info.set_vocab_size(static_cast<uint32_t>(model.vocab_size));
  info.set_weight_bytes(model.weight_bytes);
  info.set_weight_format(model.weight_format);
  for (const int32_t id : model.tokenizer->eog_ids()) {
    info.add_eos_token_ids(static_cast<uint32_t>(id));
  }
  info.mutable_default_sampling()->set_temperature(environment_.defaults.temperature);
  info.set_default_max_tokens(static_cast<uint32_t>(environment_.defaults.max_tokens));
  *info.mutable_default_kv_policy() =
      ToProto(model.engine->default_policy(), model.engine->tier_options());
  info.set_fingerprint(absl::StrFormat("%016x", model.fingerprint));
  return info;
}

void InferenceService::Describe(v1::ServerInfo* response) const {
  response->set_version(facts_.version);
  response->set_git_commit(facts_.git_commit);
  response->set_backend(facts_.backend);
  response->mutable_cpu_features()->Add(facts_.cpu_features.begin(), facts_.cpu_features.end());
  response->mutable_devices()->Add(facts_.devices.begin(), facts_.devices.end());
  response->set_draining(environment_.state->draining());
  response->set_ready(environment_.state->ready());
  const auto uptime = environment_.clock->Now() - start_;
  *response->mutable_uptime() = TimeUtil::NanosecondsToDuration(
      std::chrono::duration_cast<std::chrono::nanoseconds>(uptime).count());
  const auto model = environment_.state->Model();
  if (model.ok()) response->set_io_engine((*model)->engine->Snapshot()->cache.io_engine);
}

}  // namespace

std::unique_ptr<grpc::Service> MakeInferenceService(const CallEnvironment& environment,
                                                    const ServerFacts& facts) {
  return std::make_unique<InferenceService>(environment, facts);
}

}  // namespace strata::rpc
