#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "bench/measure.h"
#include "bench/suites.h"
#include "tiering/cold_store.h"
#include "tiering/tier_plan.h"

namespace strata::bench {
namespace {

constexpr int kInFlight = 32;

// The plan of a cache whose cold tier has `bytes`: an 8B model's geometry, so that a group of
// layers is what a real cold read is.
TierOptions Options(const BenchOptions& options) {
  TierOptions tiers;
  tiers.geometry = {.layers = 32, .kv_heads = 8, .head_dim = 128};
  tiers.formats = TierFormats::Uniform(32, {KvKind::kI4, KvKind::kI4}, {KvKind::kI2, KvKind::kI2});
  tiers.formats.KeepK(8, {});
  tiers.cold_bytes = options.cold_bytes;
  tiers.cold_path = absl::StrCat(options.cold_dir, "/strata-bench-", getpid(), ".cold");
  return tiers;
}

class Store {
 public:
  static absl::StatusOr<std::unique_ptr<Store>> Open(const BenchOptions& options) {
    auto result = std::unique_ptr<Store>(new Store(options));
    STRATA_ASSIGN_OR_RETURN(result->store_, ColdStore::Open({.path = result->tiers_.cold_path,
                                                             .bytes_max = result->tiers_.cold_bytes,
                                                             .identity = {},
                                                             .formats = result->tiers_.formats,
                                                             .layout = &result->plan_.record,
                                                             .io_engine = options.io_engine,
                                                             .io_depth = kInFlight},
                                                            &result->completions_));
    return result;
  }
  ~Store() {
    store_.reset();
    unlink(tiers_.cold_path.c_str());
  }

  // Writes every record, each filled with its own bytes. Up to kInFlight at once.
  absl::Status WriteAll() {
    std::vector<ColdStore::WriteOp> ops(kInFlight);
    for (ColdStore::WriteOp& op : ops) STRATA_RETURN_IF_ERROR(store_->Prepare(&op));
    int32_t next = 0;
    const auto start = [&](ColdStore::WriteOp* op) {
      op->record = SlotId(next);
      std::memset(op->buffer.data(), Fill(next), op->buffer.size());
      ++next;
      store_->Write(op);
    };
    return RunAll(
        store_->records(), [&](int slot) { start(&ops[slot]); },
        [&](Completion* done) {
          auto* op = static_cast<ColdStore::WriteOp*>(done);
          if (op->result != ColdStore::Result::kOk) return false;
          store_->Publish(*op);
          if (next < store_->records()) start(op);
          return true;
        });
  }

  // Reads groups of records in random order, `count` in all, and checks what came.
  absl::Status ReadRandom(int32_t count) {
    std::mt19937 random(1);
    std::vector<ColdStore::ReadOp> ops(kInFlight);
    STRATA_ASSIGN_OR_RETURN(
        AlignedBuffer memory,
        AlignedBuffer::Allocate(plan_.record.largest_group_bytes() * kInFlight));
    int32_t next = 0;
    const auto target = [&](const ColdStore::ReadOp* op) {
      return memory.data() + plan_.record.largest_group_bytes() * (op - ops.data());
    };
    const auto start = [&](ColdStore::ReadOp* op) {
      ++next;
      op->record = SlotId(random() % store_->records());
      op->group = static_cast<int32_t>(random() % plan_.record.groups());
      store_->Read(op, target(op));
    };
    return RunAll(
        count, [&](int slot) { start(&ops[slot]); },
        [&](Completion* done) {
          auto* op = static_cast<ColdStore::ReadOp*>(done);
          if (op->result != ColdStore::Result::kOk) return false;
          if (*target(op) != std::byte{Fill(op->record.value())}) return false;
          if (next < count) start(op);
          return true;
        });
  }

  const ColdStore& store() const { return *store_; }
  const RecordLayout& layout() const { return plan_.record; }

 private:
  explicit Store(const BenchOptions& options)
      : tiers_(Options(options)), plan_(TierPlan::Make(tiers_)) {}

  static uint8_t Fill(uint32_t record) { return static_cast<uint8_t>(record * 37 + 1); }

  // Starts up to kInFlight operations and hands every completion to `finish` until `count` are
  // done.
  template <typename Start, typename Finish>
  absl::Status RunAll(int32_t count, const Start& start, const Finish& finish) {
    for (int slot = 0; slot < std::min(count, kInFlight); ++slot) start(slot);
    int32_t done = 0;
    while (done < count) {
      Completion* completion = completions_.WaitAll(std::chrono::seconds(1));
      while (completion != nullptr) {
        Completion* following = completion->next;
        if (!finish(completion)) return absl::DataLossError("a cold record came back wrong");
        ++done;
        completion = following;
      }
    }
    return absl::OkStatus();
  }

  const TierOptions tiers_;
  const TierPlan plan_;
  CompletionQueue completions_;
  std::unique_ptr<ColdStore> store_;
};

}  // namespace

absl::StatusOr<nlohmann::json> RunColdIo(const BenchOptions& options) {
  STRATA_ASSIGN_OR_RETURN(const auto store, Store::Open(options));
  absl::Status status;
  const double write_seconds = Seconds([&] { status.Update(store->WriteAll()); });
  STRATA_RETURN_IF_ERROR(status);
  const int32_t reads = store->store().records() * store->layout().groups();
  const double read_seconds =
      MedianSeconds(options.runs, [&] { status.Update(store->ReadRandom(reads)); });
  STRATA_RETURN_IF_ERROR(status);
  const double written =
      static_cast<double>(store->store().record_bytes()) * store->store().records();
  double group_bytes = 0;
  for (int32_t g = 0; g < store->layout().groups(); ++g) {
    group_bytes += static_cast<double>(store->layout().group(g).bytes);
  }
  group_bytes /= store->layout().groups();
  return nlohmann::json{{"benchmark", "cold-io"},
                        {"io_engine", std::string(store->store().io_engine())},
                        {"direct", store->store().direct()},
                        {"records", store->store().records()},
                        {"record_bytes", store->store().record_bytes()},
                        {"read_bytes_mean", group_bytes},
                        {"in_flight", kInFlight},
                        {"write_bytes_per_s", written / write_seconds},
                        {"random_read_bytes_per_s", group_bytes * reads / read_seconds},
                        {"rows", nlohmann::json::array()}};
}

}  // namespace strata::bench
