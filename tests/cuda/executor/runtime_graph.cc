// Graphs made by capturing a stream: lists of kernels and copies that are enqueued together.

#include <algorithm>
#include <thread>
#include <utility>

#include "tests/cuda/executor/runtime.h"

namespace executor {
namespace {

std::shared_ptr<const Graph> FindGraph(const Runtime& runtime, const void* handle) {
  const auto found = runtime.graphs.find(handle);
  return found == runtime.graphs.end() ? nullptr : found->second;
}

}  // namespace

bool CapturesHere(const Runtime& runtime) {
  return std::any_of(runtime.streams.begin(), runtime.streams.end(), [](const Stream* stream) {
    return stream->capture != nullptr && stream->capture->thread == std::this_thread::get_id();
  });
}

}  // namespace executor

using executor::ApiCall;
using executor::FindGraph;
using executor::Graph;
using executor::Stream;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode) {
  ApiCall call("cudaStreamBeginCapture");
  if (call.refused()) return call.refusal();
  Stream* stream = executor::FindStream(call.runtime(), handle);
  if (stream == nullptr) return call.Return(cudaErrorInvalidResourceHandle);
  if (stream == &call.runtime().default_stream) {
    return call.Return(cudaErrorStreamCaptureUnsupported);
  }
  if (stream->capture != nullptr) return call.Return(cudaErrorIllegalState);
  stream->capture = std::make_shared<Graph>();
  stream->capture->thread = std::this_thread::get_id();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* out) {
  ApiCall call("cudaStreamEndCapture");
  if (call.refused()) return call.refusal();
  Stream* stream = executor::FindStream(call.runtime(), handle);
  if (stream == nullptr) return call.Return(cudaErrorInvalidResourceHandle);
  if (stream->capture == nullptr) return call.Return(cudaErrorIllegalState);
  const auto graph = std::exchange(stream->capture, nullptr);
  *out = nullptr;
  if (graph->invalid) return call.Return(cudaErrorStreamCaptureInvalidated);
  call.runtime().graphs[graph.get()] = graph;
  *out = reinterpret_cast<cudaGraph_t>(graph.get());
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t handle, unsigned long long) {
  ApiCall call("cudaGraphInstantiate");
  if (call.refused()) return call.refusal();
  const auto graph = FindGraph(call.runtime(), handle);
  if (graph == nullptr) return call.Return(cudaErrorInvalidValue);
  const auto instance = std::make_shared<Graph>(*graph);
  call.runtime().graphs[instance.get()] = instance;
  *out = reinterpret_cast<cudaGraphExec_t>(instance.get());
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream_handle) {
  ApiCall call("cudaGraphLaunch");
  if (call.refused()) return call.refusal();
  Stream* stream = executor::FindStream(call.runtime(), stream_handle);
  const auto graph = FindGraph(call.runtime(), handle);
  if (stream == nullptr || graph == nullptr) return call.Return(cudaErrorInvalidValue);
  for (const executor::Operation& operation : graph->operations) {
    executor::Enqueue(call.runtime(), call.lock(), stream, operation);
  }
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t handle) {
  ApiCall call("cudaGraphDestroy");
  if (call.refused()) return call.refusal();
  return call.Return(call.runtime().graphs.erase(handle) == 1 ? cudaSuccess
                                                              : cudaErrorInvalidValue);
}

// What was launched still runs: its operations were copied.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle) {
  ApiCall call("cudaGraphExecDestroy");
  if (call.refused()) return call.refusal();
  return call.Return(call.runtime().graphs.erase(handle) == 1 ? cudaSuccess
                                                              : cudaErrorInvalidValue);
}

}  // extern "C"
