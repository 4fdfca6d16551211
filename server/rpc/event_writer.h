#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "model/tokenizer.h"
#include "server/engine/request.h"
#include "server/rpc/request_reader.h"
#include "server/rpc/serving_state.h"
#include "strata/v1/inference.pb.h"

namespace strata::rpc {

// Turns one request's engine events into protos, leaving out what the client did not ask for.
// Immutable after construction.
class EventWriter {
 public:
  EventWriter(std::shared_ptr<const ServedModel> model, const ParsedRequest& parsed,
              std::chrono::system_clock::time_point received);

  v1::GenerateEvent Started(const StartedEvent& event) const;
  v1::GenerateEvent Progress(int32_t done, int32_t total) const;
  v1::GenerateEvent Delta(const DeltaEvent& event) const;
  v1::GenerateEvent Finished(const FinishedEvent& event) const;
  v1::GenerateEvent Summary(const FinishedEvent& event) const;

  bool progress() const { return output_.progress; }

 private:
  std::shared_ptr<const ServedModel> model_;
  std::string request_id_;
  uint64_t seed_;
  OutputChoices output_;
  std::chrono::system_clock::time_point received_;
};

}  // namespace strata::rpc
