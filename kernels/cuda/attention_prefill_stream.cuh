#pragma once

#include "kernels/cuda/attention_f16.cuh"
#include "kernels/cuda/attention_stream.cuh"

namespace strata::cuda {

// A prefill block's pages of all splits of a work item, share by share, brought through a ring of
// whole tensors in shared memory by cp.async: kStages - 1 are under way while one is used. A page's
// description comes with K of the page before it. Every thread copies, and all of them call every
// function together.
template <int kStages>
class PrefillStream {
 public:
  // What NextPage promises holds for these.
  static_assert(kStages == 2 || kStages == 3);

  GPU_DEVICE PrefillStream(const AttentionLaunch& launch, const AttentionGeometry& geometry,
                           const AttentionWork& work, int kv_head, uint8_t* shared)
      : launch_(launch),
        geometry_(geometry),
        first_position_(work.first_position + work.first_query / geometry.group),
        last_position_(work.first_position +
                       (work.first_query + work.queries - 1) / geometry.group),
        ring_(shared + geometry.ring),
        pages_(reinterpret_cast<AttentionPage*>(shared + geometry.infos)),
        bad_values_(reinterpret_cast<uint64_t*>(shared + geometry.bad_values)),
        kv_head_(kv_head),
        split_(work.first_split),
        split_end_(work.first_split + work.split_count) {
    IssuePage();
    gpu::CpAsyncCommit();
    gpu::CpAsyncWait<0>();
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) Issue();
  }

  // The next page of the consumer, both tensors of the one before it having been taken: the last
  // one of which a copy has begun. `parts` are what the block's queries see.
  GPU_DEVICE PageInfo NextPage() const {
    const AttentionPage& page = Current();
    const AttentionLayout& layout = launch_.layouts[page.layout];
    const uint32_t parts = PartsOf(layout.k, layout.v, page.visible, page.position, last_position_);
    return {page.visible, page.position, static_cast<uint8_t>(parts), layout.k, layout.v, 0};
  }

  // K of that page, then V. The tensor before it may be overwritten from here on.
  GPU_DEVICE uint8_t* NextTensor() {
    gpu::CpAsyncWait<kStages - 2>();
    __syncthreads();
    Issue();
    uint8_t* tensor = ring_ + taken_slot_ * geometry_.stage_bytes;
    taken_slot_ = taken_slot_ + 1 == kStages ? 0 : taken_slot_ + 1;
    return tensor;
  }

  // Makes an F16 V of which some query of the block does not see all safe to multiply
  // (ClearToken). Returns the tokens that had a value which is not finite.
  GPU_DEVICE uint64_t ClearUnseen(uint8_t* tensor, const PageInfo& info) {
    if (info.visible == ~uint64_t{0} && info.position + kBlockTokens - 1 <= first_position_) {
      return 0;
    }
    const uint64_t seen = SeenTokens(info.visible, info.position, last_position_);
    const int warp = static_cast<int>(threadIdx.x / 32);
    uint64_t bad = 0;
#pragma unroll 1
    for (int token = warp; token < kBlockTokens; token += geometry_.warps) {
      const int tile = token / 16;
      if (((info.parts >> (4 + tile)) & 1) == 0) continue;
      const bool met =
          ClearToken(tensor + 32 * geometry_.dim * tile, static_cast<uint32_t>(token % 16),
                     ((seen >> token) & 1) == 0, geometry_);
      if (__any_sync(gpu::kAllLanes, met)) bad |= uint64_t{1} << token;
    }
    if (threadIdx.x % 32 == 0) bad_values_[warp] = bad;
    __syncthreads();
#pragma unroll 1
    for (int w = 0; w < geometry_.warps; ++w) bad |= bad_values_[w];
    return bad;
  }

 private:
  // Of the descriptions that have been issued, the last one is of the page after the current one,
  // or of the current one where there is no more.
  GPU_DEVICE const AttentionPage& Current() const { return pages_[current_ % kPageInfos]; }

  // Starts the copy of the description of the page after the last one issued.
  GPU_DEVICE void IssuePage() {
#pragma unroll 1
    for (; split_ < split_end_; ++split_) {
      const AttentionSplit& split = launch_.splits[split_];
#pragma unroll 1
      for (; share_ < kAttentionShares; ++share_, index_ = 0) {
        if (index_ == split.count[share_]) continue;
        const AttentionPage* page = launch_.pages + split.first_page + split.begin[share_] + index_;
        ++index_;
        if (threadIdx.x < sizeof(AttentionPage) / 16) {
          gpu::CpAsync16(
              reinterpret_cast<uint8_t*>(pages_ + issued_ % kPageInfos) + 16 * threadIdx.x,
              reinterpret_cast<const uint8_t*>(page) + 16 * threadIdx.x);
        }
        ++issued_;
        return;
      }
      share_ = 0;
    }
  }

  // Starts the copies of the next tensor as one group (an empty one at the end).
  GPU_DEVICE void Issue() {
    if (is_v_) {
      IssueTensor(false);
      is_v_ = false;
    } else if (current_ + 1 < issued_) {
      ++current_;
      IssueTensor(true);
      IssuePage();
      is_v_ = true;
    }
    gpu::CpAsyncCommit();
    issued_slot_ = issued_slot_ + 1 == kStages ? 0 : issued_slot_ + 1;
  }

  GPU_DEVICE void IssueTensor(bool is_k) {
    const AttentionPage& page = Current();
    const AttentionLayout& layout = launch_.layouts[page.layout];
    const PageTensors tensors{static_cast<const uint8_t*>(page.base),
                              static_cast<const uint8_t*>(page.refine),
                              static_cast<uint32_t>(kv_head_)};
    uint8_t* to = ring_ + issued_slot_ * geometry_.stage_bytes;
    const int thread = static_cast<int>(threadIdx.x);
    const int threads = static_cast<int>(blockDim.x);
    if ((is_k ? layout.k : layout.v) != AttentionRead::kF16) {
      tensors.CopyCodes<1>(layout, geometry_, is_k, to, thread, threads);
      return;
    }
    // From the first tile that is seen to the last one.
    const uint32_t live = LiveTiles(page.visible, page.position, last_position_);
    const int first = __ffs(static_cast<int>(live)) - 1;
    const int end = 32 - __clz(static_cast<int>(live));
    tensors.CopyHalves(layout, geometry_, is_k, first, end, to + 32 * geometry_.dim * first, thread,
                       threads);
  }

  const AttentionLaunch& launch_;
  const AttentionGeometry& geometry_;
  const int32_t first_position_;
  const int32_t last_position_;
  uint8_t* ring_;
  AttentionPage* pages_;
  uint64_t* bad_values_;
  const int kv_head_;

  int32_t split_;  // with share_ and index_: of the first page whose description is not issued
  const int32_t split_end_;
  int32_t share_ = 0;
  int32_t index_ = 0;
  int32_t issued_ = 0;    // descriptions
  int32_t current_ = -1;  // the page of which the last tensor was issued
  bool is_v_ = false;     // what Issue brings next is V of that page
  int32_t issued_slot_ = 0;
  int32_t taken_slot_ = 0;
};

}  // namespace strata::cuda
