#include "kernels/cuda/graph_recorder.h"

#include <optional>
#include <unordered_map>
#include <utility>

#include "kernels/cuda/cuda_status.h"

namespace strata::cuda {
namespace {

// More stretches than this are enqueued call by call: a graph takes some 10 KiB.
constexpr size_t kGraphsMax = 2048;

class Instance {
 public:
  explicit Instance(cudaGraphExec_t graph) : graph_(graph) {}
  Instance(Instance&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
  Instance& operator=(Instance&&) = delete;
  Instance(const Instance&) = delete;
  ~Instance() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  }
  cudaGraphExec_t get() const { return graph_; }

 private:
  cudaGraphExec_t graph_;
};

class GraphRecorder final : public Recorder {
 public:
  explicit GraphRecorder(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}
  ~GraphRecorder() override { device_->Note(device_->stream().Synchronize()); }

  bool Replay(uint64_t key) override {
    if (generation_ != device_->generation()) Forget();
    if (!enabled_) return false;
    const auto found = graphs_.find(key);
    if (found == graphs_.end()) {
      if (graphs_.size() < kGraphsMax) graphs_.emplace(key, nullptr);
      return false;
    }
    if (found->second.get() == nullptr) {
      const cudaError_t error =
          cudaStreamBeginCapture(device_->stream().get(), cudaStreamCaptureModeThreadLocal);
      // The calls then simply run; there is nothing to be told but that they run one by one.
      enabled_ = error == cudaSuccess;
      if (enabled_) capturing_ = key;
      return false;
    }
    device_->Note(cudaGraphLaunch(found->second.get(), device_->stream().get()), "cudaGraphLaunch");
    return true;
  }

  void End() override {
    if (!capturing_.has_value()) return;
    const uint64_t key = *std::exchange(capturing_, std::nullopt);
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(device_->stream().get(), &graph);
    cudaGraphExec_t instance = nullptr;
    if (error == cudaSuccess) {
      device_->Note(cudaGraphInstantiate(&instance, graph, 0), "cudaGraphInstantiate");
      cudaGraphDestroy(graph);
    } else {
      device_->Note(error, "cudaStreamEndCapture");
    }
    if (instance == nullptr) {
      // This step's work is lost and its error noted; later ones do without graphs.
      enabled_ = false;
      return;
    }
    // Capturing ran nothing.
    device_->Note(cudaGraphLaunch(instance, device_->stream().get()), "cudaGraphLaunch");
    graphs_.erase(key);
    graphs_.emplace(key, instance);
  }

 private:
  void Forget() {
    device_->Note(device_->stream().Synchronize());
    graphs_.clear();
    generation_ = device_->generation();
  }

  const std::shared_ptr<CudaDevice> device_;
  bool enabled_ = true;
  uint64_t generation_ = 0;
  std::unordered_map<uint64_t, Instance> graphs_;  // null: was seen once
  std::optional<uint64_t> capturing_;
};

}  // namespace

std::unique_ptr<Recorder> MakeGraphRecorder(std::shared_ptr<CudaDevice> device) {
  return std::make_unique<GraphRecorder>(std::move(device));
}

}  // namespace strata::cuda
