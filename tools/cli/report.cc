#include "tools/cli/report.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/time_util.h"
#include "google/rpc/error_details.pb.h"
#include "server/rpc/errors.h"
#include "server/rpc/utf8.h"

namespace strata::cli {
namespace {

using google::protobuf::util::TimeUtil;

// Rows of cells, the first as the heading; all but the first column are set flush right.
class Table {
 public:
  void Row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string ToString() const {
    std::vector<size_t> widths(rows_.front().size());
    for (const auto& row : rows_) {
      for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    std::string text;
    for (const auto& row : rows_) {
      for (size_t i = 0; i < row.size(); ++i) {
        const std::string space(widths[i] - row[i].size(), ' ');
        absl::StrAppend(&text, i == 0 ? "" : "  ", i == 0 ? row[i] : space,
                        i == 0 ? space : row[i]);
      }
      text.append("\n");
    }
    return text;
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string Bytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

double Seconds(const google::protobuf::Duration& duration) {
  return static_cast<double>(TimeUtil::DurationToNanoseconds(duration)) * 1e-9;
}

// "TIER_HOT" -> "hot"
std::string ShortName(const std::string& name, const std::string& prefix) {
  return absl::AsciiStrToLower(absl::StripPrefix(name, prefix));
}
std::string NameOf(v1::Tier tier) { return ShortName(v1::Tier_Name(tier), "TIER_"); }

// Readable, and unambiguous where the bytes are no text.
std::string Escaped(const std::string& bytes) {
  return rpc::ToValidUtf8(bytes) == bytes ? absl::Utf8SafeCEscape(bytes) : absl::CEscape(bytes);
}

std::string WindowText(uint32_t tokens) {
  return tokens == UINT32_MAX ? "all" : absl::StrCat(tokens);
}

std::string PolicyText(const v1::KvPolicy& policy) {
  return absl::StrFormat("first %s and latest %s tokens hot, %s before them warm%s",
                         WindowText(policy.sink_tokens()), WindowText(policy.recent_tokens()),
                         WindowText(policy.warm_tokens()),
                         policy.allow_cold() ? ", the rest cold" : "");
}

template <typename Links>
std::string LinksTable(const Links& links) {
  Table table;
  table.Row({"link", "bytes", "as F16", "saved", "pages", "waited"});
  for (const v1::LinkUse& link : links) {
    const double saved = link.bytes_f16_equivalent() == 0
                             ? 0
                             : 1 - static_cast<double>(link.bytes()) /
                                       static_cast<double>(link.bytes_f16_equivalent());
    table.Row({absl::StrCat(NameOf(link.from()), ">", NameOf(link.to())), Bytes(link.bytes()),
               Bytes(link.bytes_f16_equivalent()), absl::StrFormat("%.1f %%", saved * 100),
               absl::StrCat(link.pages()), absl::StrFormat("%.3f s", Seconds(link.wait()))});
  }
  return table.ToString();
}

std::string TiersTable(const v1::KvUsage& kv) {
  Table table;
  table.Row({"tier", "format", "tokens", "pages", "bytes", "peak", "bits/value"});
  for (const v1::TierUse& use : kv.tiers()) {
    table.Row({NameOf(use.tier()), use.layout(), absl::StrCat(use.tokens()),
               absl::StrCat(use.pages()), Bytes(use.bytes()), Bytes(use.peak_bytes()),
               absl::StrFormat("%.2f", use.bits_per_value())});
  }
  return table.ToString();
}

}  // namespace

std::string SummaryReport(const v1::GenerateResult& result) {
  std::string text;
  if (result.has_kv()) {
    absl::StrAppend(&text, "cache: ", PolicyText(result.effective_policy()), "\n",
                    TiersTable(result.kv()), LinksTable(result.kv().links()));
    if (result.kv().k_relative_error() > 0 || result.kv().v_relative_error() > 0) {
      absl::StrAppendFormat(&text, "sampled error of warm pages: K %.4f, V %.4f\n",
                            result.kv().k_relative_error(), result.kv().v_relative_error());
    }
  }
  const double prefill = Seconds(result.timing().prefill());
  const double decode = Seconds(result.timing().decode());
  const uint32_t prompt = result.usage().prompt_tokens();
  const uint32_t output = result.usage().completion_tokens();
  const std::string reason =
      result.choices().empty()
          ? "unknown"
          : ShortName(v1::FinishReason_Name(result.choices(0).reason()), "FINISH_REASON_");
  absl::StrAppendFormat(&text, "prompt: %d tokens in %.3f s (%.1f tokens/s)\n", prompt, prefill,
                        prefill > 0 ? prompt / prefill : 0.0);
  absl::StrAppendFormat(
      &text, "output: %d tokens in %.3f s (%.1f tokens/s), first after %.3f s; ended by %s\n",
      output, decode, decode > 0 && output > 1 ? (output - 1) / decode : 0.0,
      Seconds(result.timing().time_to_first_token()), reason);
  return text;
}

std::string StatsReport(const v1::CacheStats& stats) {
  Table table;
  table.Row({"tier", "format", "capacity", "used", "reserved", "tokens", "pages", "free pages",
             "bits/value"});
  for (const v1::TierStats& tier : stats.tiers()) {
    table.Row({NameOf(tier.tier()), tier.layout(), Bytes(tier.capacity_bytes()),
               Bytes(tier.used_bytes()), Bytes(tier.reserved_bytes()), absl::StrCat(tier.tokens()),
               absl::StrCat(tier.pages()), absl::StrCat(tier.free_pages()),
               absl::StrFormat("%.2f", tier.bits_per_value())});
  }
  return absl::StrCat(table.ToString(), "\n", LinksTable(stats.links()),
                      "\nrequests: ", stats.running(), " running, ", stats.waiting(), " waiting\n",
                      stats.cold_degraded() ? "the cold tier is degraded\n" : "");
}

std::string TokensReport(const v1::TokenizeResponse& response) {
  Table table;
  table.Row({"id", "bytes", "token"});
  for (const auto& token : response.tokens()) {
    table.Row({absl::StrCat(token.id()), absl::StrCat(token.start(), "-", token.end()),
               absl::StrCat("\"", Escaped(token.bytes()), "\"")});
  }
  return absl::StrCat(table.ToString(), response.count(), " tokens\n");
}

std::string InfoReport(const v1::ServerInfo& server, const v1::ListModelsResponse& models) {
  const char* state = server.draining() ? "draining" : server.ready() ? "ready" : "loading";
  std::string text = absl::StrFormat(
      "server: version %s (%s), %s, up %.0f s\ndevice: %s, %s (%s)\ndisk: %s\n", server.version(),
      server.git_commit(), state, Seconds(server.uptime()), absl::StrJoin(server.devices(), ", "),
      server.backend(), absl::StrJoin(server.cpu_features(), " "), server.io_engine());
  for (const v1::ModelInfo& model : models.models()) {
    absl::StrAppendFormat(&text,
                          "model: %s\n  %s, %s of %s weights, vocabulary %d, context %d tokens\n"
                          "  default: %d tokens of output, temperature %g\n  cache: %s\n",
                          model.name(), model.architecture(), Bytes(model.weight_bytes()),
                          model.weight_format(), model.vocab_size(), model.context_length(),
                          model.default_max_tokens(), model.default_sampling().temperature(),
                          PolicyText(model.default_kv_policy()));
  }
  return text;
}

std::string ErrorReport(const absl::Status& status) {
  google::rpc::BadRequest bad_request;
  const bool fields = rpc::GetDetail(status, &bad_request);
  std::string text = absl::StatusCodeToString(status.code());
  absl::StrAppend(&text, fields ? "" : ": ", fields ? "" : status.message(), "\n");
  if (fields) {  // the message has the same lines, joined
    for (const auto& violation : bad_request.field_violations()) {
      absl::StrAppend(&text, "  ", violation.field(), ": ", violation.description(), "\n");
    }
  }
  google::rpc::QuotaFailure quota;
  if (rpc::GetDetail(status, &quota)) {
    for (const auto& violation : quota.violations()) {
      absl::StrAppend(&text, "  ", violation.subject(), ": ", violation.description(), "\n");
    }
  }
  google::rpc::ErrorInfo info;
  if (rpc::GetDetail(status, &info)) absl::StrAppend(&text, "  reason: ", info.reason(), "\n");
  google::rpc::RetryInfo retry;
  if (rpc::GetDetail(status, &retry)) {
    absl::StrAppendFormat(&text, "  try again in %g s\n", Seconds(retry.retry_delay()));
  }
  return text;
}

std::string ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  STRATA_CHECK(status.ok());  // our own messages always have a JSON form
  return json;
}

}  // namespace strata::cli
