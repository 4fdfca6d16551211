#include "server/rpc/stats_report.h"

#include <memory>

#include "base/check.h"
#include "base/status_macros.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "server/rpc/cache_reports.h"

namespace strata::rpc {

absl::StatusOr<v1::CacheStats> ReportStats(const ServingState& state) {
  STRATA_ASSIGN_OR_RETURN(const std::shared_ptr<const ServedModel> model, state.Model());
  v1::CacheStats stats = ToProto(*model->engine->Snapshot(), model->engine->tier_options());
  stats.set_model(model->name);
  stats.set_draining(state.draining());
  return stats;
}

std::string StatsJson(const ServingState& state) {
  const absl::StatusOr<v1::CacheStats> stats = ReportStats(state);
  google::protobuf::Struct error;
  if (!stats.ok()) {
    (*error.mutable_fields())["error"].set_string_value(std::string(stats.status().message()));
  }
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string json;
  const google::protobuf::Message& message =
      stats.ok() ? static_cast<const google::protobuf::Message&>(*stats) : error;
  STRATA_CHECK(google::protobuf::util::MessageToJsonString(message, &json, options).ok());
  return json;
}

}  // namespace strata::rpc
