#pragma once

#include <memory>

#include "kernels/cuda/cuda_device.h"
#include "kernels/recorder.h"

namespace strata::cuda {

// Recordings as CUDA graphs of the compute stream. A stretch runs plainly the first time (whatever
// is set up lazily is, then), is captured the second time, and replayed from then on. All are
// forgotten when the device says that scratch has moved. Errors are noted in the device.
std::unique_ptr<Recorder> MakeGraphRecorder(std::shared_ptr<CudaDevice> device);

}  // namespace strata::cuda
