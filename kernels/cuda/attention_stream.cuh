#pragma once

#include "kernels/cuda/attention_geometry.h"
#include "kernels/cuda/gpu_compat.cuh"

namespace strata::cuda {

GPU_DEVICE uint32_t Swizzled(const Swizzle& s, uint32_t unit) {
  return unit ^ ((unit >> s.shift) & s.mask);
}

// What the consumer needs to know of a page.
struct PageInfo {
  uint64_t visible;
  int32_t position;
  // Chunks of the page, as bits: 0-3 of K, 4-7 of V. Of F16, the tiles that any query sees; codes
  // have the first alone.
  uint8_t parts;
  AttentionRead k;
  AttentionRead v;
  uint8_t unused;
};
static_assert(sizeof(PageInfo) == kPageInfoBytes);

// Tiles of 16 tokens of which a query at position `last` sees something; at least one, so that
// every page has a chunk.
GPU_DEVICE uint32_t LiveTiles(uint64_t visible, int32_t position, int32_t last) {
  const int32_t causal = last - position + 1;
  if (causal < kBlockTokens) visible &= (uint64_t{1} << max(causal, 0)) - 1;
  const uint32_t low = static_cast<uint32_t>(visible);
  const uint32_t high = static_cast<uint32_t>(visible >> 32);
  const uint32_t live = ((low & 0xffffu) != 0 ? 1u : 0u) | ((low >> 16) != 0 ? 2u : 0u) |
                        ((high & 0xffffu) != 0 ? 4u : 0u) | ((high >> 16) != 0 ? 8u : 0u);
  return live == 0 ? 1u : live;
}

// One warp's pages of all splits of a work item, brought through a ring of chunks in shared memory
// by cp.async: kStages - 1 chunks are under way while one is used. Private to the warp: no barrier
// but __syncwarp. A page's chunks are its K, then its V, each either the live tiles of F16 or one
// chunk of codes.
template <int kStages>
class PageStream {
 public:
  GPU_DEVICE PageStream(const AttentionLaunch& launch, const AttentionGeometry& geometry,
                        const AttentionWork& work, int kv_head, int32_t last_position,
                        uint8_t* shared)
      : launch_(launch),
        geometry_(geometry),
        kv_head_(kv_head),
        last_position_(last_position),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        split_(work.first_split),
        split_end_(work.first_split + work.split_count) {
    ring_ = shared + geometry.ring + size_t{kStages} * geometry.chunk_bytes * warp_;
    infos_ = reinterpret_cast<PageInfo*>(shared + geometry.infos) + kPageInfos * warp_;
    Prefetch();
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) Issue();
  }

  // The next page of the consumer. Every chunk of the pages before it has been taken.
  GPU_DEVICE PageInfo NextPage() {
    __syncwarp();
    const PageInfo info = infos_[taken_pages_ % kPageInfos];
    ++taken_pages_;
    return info;
  }

  // The next chunk of that page. The one before it may be overwritten from here on.
  GPU_DEVICE const uint8_t* NextChunk() {
    gpu::CpAsyncWait<kStages - 2>();
    __syncwarp();
    Issue();
    const uint8_t* chunk = ring_ + taken_slot_ * geometry_.chunk_bytes;
    taken_slot_ = taken_slot_ + 1 == kStages ? 0 : taken_slot_ + 1;
    return chunk;
  }

 private:
  // Loads the description of the page after the current one, early enough to hide the latency.
  GPU_DEVICE void Prefetch() {
    while (split_ < split_end_) {
      const AttentionSplit& split = launch_.splits[split_];
      if (index_ < split.count[warp_]) {
        next_ = launch_.pages[split.first_page + split.begin[warp_] + index_];
        ++index_;
        return;
      }
      ++split_;
      index_ = 0;
    }
    done_ = true;
  }

  GPU_DEVICE void StartPage() {
    const AttentionLayout& layout = launch_.layouts[next_.layout];
    base_ = static_cast<const uint8_t*>(next_.base);
    refine_ = static_cast<const uint8_t*>(next_.refine);
    layout_ = next_.layout;
    const bool halves = layout.k == AttentionRead::kF16 || layout.v == AttentionRead::kF16;
    const uint32_t live = halves ? LiveTiles(next_.visible, next_.position, last_position_) : 1u;
    parts_ = (layout.k == AttentionRead::kF16 ? live : 1u) |
             (layout.v == AttentionRead::kF16 ? live : 1u) << 4;
    if (lane_ == 0) {
      infos_[issued_pages_ % kPageInfos] = {
          next_.visible, next_.position, static_cast<uint8_t>(parts_), layout.k, layout.v, 0};
    }
    ++issued_pages_;
    Prefetch();
  }

  // Starts the copies of the next chunk as one group (an empty one at the end).
  GPU_DEVICE void Issue() {
    if (parts_ == 0 && !done_) StartPage();
    if (parts_ != 0) {
      const int part = __ffs(static_cast<int>(parts_)) - 1;
      parts_ &= parts_ - 1;
      IssuePart(part & 3, part < 4, ring_ + issued_slot_ * geometry_.chunk_bytes);
    }
    gpu::CpAsyncCommit();
    issued_slot_ = issued_slot_ + 1 == kStages ? 0 : issued_slot_ + 1;
  }

  GPU_DEVICE void IssuePart(int tile, bool is_k, uint8_t* to) {
    const AttentionLayout& layout = launch_.layouts[layout_];
    const uint32_t head = static_cast<uint32_t>(kv_head_);
    const int dim = geometry_.dim;
    const AttentionRead read = is_k ? layout.k : layout.v;
    const uint8_t* from =
        base_ + (is_k ? layout.k_stride * head : layout.v_first + layout.v_stride * head);
    if (read == AttentionRead::kF16) {
      Copy(to, from + 32 * dim * tile, 2 * dim, is_k ? geometry_.k_halves : geometry_.v_halves);
      return;
    }
    const Swizzle swizzle = is_k ? geometry_.k_codes : geometry_.v_codes;
    Copy(to, from, dim, swizzle);
    if (read == AttentionRead::kI4) {
      const uint32_t first = is_k ? layout.k_lo_first : layout.v_lo_first;
      Copy(to + 16 * dim, refine_ + first + layout.lo_stride * head, dim, swizzle);
    }
    Copy(to + 32 * dim, from + 16 * dim, is_k ? dim / 4 : 16 * geometry_.v_groups, Swizzle{0, 0});
  }

  // The swizzle by value: kept in registers over the copies, which the compiler takes for writes.
  GPU_DEVICE void Copy(uint8_t* to, const uint8_t* from, int units, Swizzle swizzle) {
    from += 16 * lane_;
#pragma unroll 1
    for (int first = lane_; first < units; first += 128) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int unit = first + 32 * k;
        if (unit < units) {
          gpu::CpAsync16(to + 16 * Swizzled(swizzle, static_cast<uint32_t>(unit)), from + 512 * k);
        }
      }
      from += 2048;
    }
  }

  const AttentionLaunch& launch_;
  const AttentionGeometry& geometry_;
  const int kv_head_;
  const int32_t last_position_;
  const int warp_;
  const int lane_;
  uint8_t* ring_;
  PageInfo* infos_;

  // Producer: the page after the current one (split_ and index_ are behind it), and the current
  // one.
  int32_t split_;
  const int32_t split_end_;
  int32_t index_ = 0;
  bool done_ = false;
  AttentionPage next_ = {};
  const uint8_t* base_ = nullptr;
  const uint8_t* refine_ = nullptr;
  int32_t layout_ = 0;
  uint32_t parts_ = 0;  // of the current page, not yet issued
  int32_t issued_slot_ = 0;
  int32_t issued_pages_ = 0;

  // Consumer.
  int32_t taken_slot_ = 0;
  int32_t taken_pages_ = 0;
};

}  // namespace strata::cuda
