#include "tests/tiering/faulty_io.h"

#include <condition_variable>
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

namespace strata {

void FaultPlan::SetReads(const Rates& rates) {
  const std::lock_guard lock(mutex_);
  reads_.rates = rates;
}

void FaultPlan::SetWrites(const Rates& rates) {
  const std::lock_guard lock(mutex_);
  writes_.rates = rates;
}

void FaultPlan::Hold() {
  const std::lock_guard lock(mutex_);
  held_ = true;
}

void FaultPlan::Open() {
  const std::lock_guard lock(mutex_);
  held_ = false;
}

bool FaultPlan::held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

bool FaultPlan::Chance(double rate) {
  return rate > 0 && std::uniform_real_distribution<double>(0, 1)(random_) < rate;
}

FaultPlan::Fault FaultPlan::Draw(const IoRequest& request) {
  const std::lock_guard lock(mutex_);
  Direction& direction = request.write ? writes_ : reads_;
  const Rates& rates = direction.rates;
  int& in_a_row = direction.in_a_row[request.offset];
  Fault fault;
  const bool spared = rates.sectors_only && request.bytes > IoEngine::kAlignment;
  if (in_a_row < rates.in_a_row_max && !spared) {
    fault.error = Chance(rates.error);
    fault.short_transfer = !fault.error && Chance(rates.short_transfer);
    fault.flip = !request.write && !fault.error && Chance(rates.flip_read);
    fault.lost_result = !fault.error && Chance(rates.lost_result);
  }
  in_a_row = fault.error || fault.short_transfer || fault.flip ? in_a_row + 1 : 0;
  fault.error_number = rates.error_number;
  fault.bit = random_();
  if (Chance(rates.delay)) {
    fault.delay = std::chrono::microseconds(random_() % (rates.delay_max.count() + 1));
  }
  return fault;
}

namespace {

class FaultyIoEngine final : public IoEngine {
 public:
  FaultyIoEngine(std::shared_ptr<FaultPlan> plan, std::unique_ptr<IoEngine> inner)
      : plan_(std::move(plan)), inner_(std::move(inner)), deliverer_([this] { Deliver(); }) {}

  ~FaultyIoEngine() override {
    plan_->Open();
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return outstanding_ == 0; });
    stop_ = true;
    lock.unlock();
    ready_.notify_all();
    deliverer_.join();
    inner_.reset();
  }

  absl::string_view name() const override { return inner_->name(); }

 private:
  struct Transfer final : IoRequest {
    void Complete(int64_t result) override { engine->Completed(this, result); }
    FaultyIoEngine* engine = nullptr;
    IoRequest* outer = nullptr;
    FaultPlan::Fault fault;
  };
  struct Due {
    std::chrono::steady_clock::time_point when;
    IoRequest* outer;
    int64_t result;
  };

  void DoSubmit(IoRequest* request) override {
    {
      const std::lock_guard lock(mutex_);
      ++outstanding_;
    }
    auto* transfer = new Transfer();
    transfer->engine = this;
    transfer->outer = request;
    transfer->fault = plan_->Draw(*request);
    transfer->write = request->write;
    transfer->offset = request->offset;
    transfer->data = request->data;
    transfer->bytes = request->bytes;
    if (transfer->fault.short_transfer)
      transfer->bytes = request->bytes / 2 / kAlignment * kAlignment;
    if (transfer->fault.error || transfer->bytes == 0) {
      Completed(transfer, transfer->fault.error ? -transfer->fault.error_number : 0);
    } else {
      inner_->Submit(transfer);
    }
  }

  void Completed(Transfer* transfer, int64_t result) {
    if (transfer->fault.flip && result > 0) {
      const uint64_t bit = transfer->fault.bit % (8 * static_cast<uint64_t>(result));
      transfer->data[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    }
    if (transfer->fault.lost_result) result = -transfer->fault.error_number;
    {
      const std::lock_guard lock(mutex_);
      due_.push_back(
          {std::chrono::steady_clock::now() + transfer->fault.delay, transfer->outer, result});
    }
    delete transfer;
    ready_.notify_one();
  }

  // Every outcome goes through here, so a failed submission also completes on another thread.
  void Deliver() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      const auto now = std::chrono::steady_clock::now();
      size_t i = 0;
      while (i < due_.size() && (plan_->held() || due_[i].when > now)) ++i;
      if (i == due_.size()) {
        ready_.wait_for(lock, std::chrono::microseconds(500));
        continue;
      }
      const Due due = due_[i];
      due_.erase(due_.begin() + static_cast<ptrdiff_t>(i));
      lock.unlock();
      Finish(due.outer, due.result);
      lock.lock();
      if (--outstanding_ == 0) idle_.notify_all();
    }
  }

  const std::shared_ptr<FaultPlan> plan_;
  std::unique_ptr<IoEngine> inner_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::condition_variable idle_;
  std::vector<Due> due_;
  int64_t outstanding_ = 0;
  bool stop_ = false;
  std::thread deliverer_;
};

}  // namespace

IoEngineFactory FaultyIo(std::shared_ptr<FaultPlan> plan, IoEngineFactory inner) {
  return [plan = std::move(plan), inner = std::move(inner)](
             absl::string_view name, int fd,
             int32_t depth) -> absl::StatusOr<std::unique_ptr<IoEngine>> {
    absl::StatusOr<std::unique_ptr<IoEngine>> made = inner(name, fd, depth);
    if (!made.ok()) return made;
    return std::make_unique<FaultyIoEngine>(plan, *std::move(made));
  };
}

}  // namespace strata
