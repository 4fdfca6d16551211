#pragma once

#include "kernels/cuda/attention_geometry.h"
#include "kernels/cuda/gpu_compat.cuh"

namespace strata::cuda {

// `given`, of which a kernel for kDim alone knows at compile time what follows from that.
template <int kDim, bool kExact>
GPU_DEVICE AttentionGeometry KnownGeometry(const AttentionGeometry& given) {
  AttentionGeometry g = given;
  if constexpr (kExact) {
    constexpr AttentionGeometry kKnown = kCommonGeometry<kDim>;
    g.dim = kKnown.dim;
    g.lines = kKnown.lines;
    g.line_groups = kKnown.line_groups;
    g.v_lines = kKnown.v_lines;
    g.v_groups = kKnown.v_groups;
    g.k_halves = kKnown.k_halves;
    g.k_codes = kKnown.k_codes;
    g.v_halves = kKnown.v_halves;
    g.v_codes = kKnown.v_codes;
  }
  return g;
}

GPU_DEVICE uint32_t Swizzled(const Swizzle& s, uint32_t unit) {
  return unit ^ ((unit >> s.shift) & s.mask) ^ ((unit >> s.far_shift) & s.far_mask);
}

// What the consumer needs to know of a page.
struct PageInfo {
  uint64_t visible;
  int32_t position;
  // Chunks of the page, as bits: 0-3 of K, 4-7 of V (PartsOf).
  uint8_t parts;
  AttentionRead k;
  AttentionRead v;
  uint8_t unused;
};
static_assert(sizeof(PageInfo) == kPageInfoBytes);

// Tokens of a page at `position` that a query at position `last` sees.
GPU_DEVICE uint64_t SeenTokens(uint64_t visible, int32_t position, int32_t last) {
  const int32_t causal = last - position + 1;
  return causal < kBlockTokens ? visible & ((uint64_t{1} << max(causal, 0)) - 1) : visible;
}

// Tiles of 16 tokens of which a query at position `last` sees something; at least one, so that
// every page has a chunk.
GPU_DEVICE uint32_t LiveTiles(uint64_t visible, int32_t position, int32_t last) {
  visible = SeenTokens(visible, position, last);
  const uint32_t low = static_cast<uint32_t>(visible);
  const uint32_t high = static_cast<uint32_t>(visible >> 32);
  const uint32_t live = ((low & 0xffffu) != 0 ? 1u : 0u) | ((low >> 16) != 0 ? 2u : 0u) |
                        ((high & 0xffffu) != 0 ? 4u : 0u) | ((high >> 16) != 0 ? 8u : 0u);
  return live == 0 ? 1u : live;
}

// Chunks of a page, as bits: 0-3 of K, 4-7 of V. Of F16, the tiles of which a query at position
// `last` sees something; codes have the first alone.
GPU_DEVICE uint32_t PartsOf(AttentionRead k, AttentionRead v, uint64_t visible, int32_t position,
                            int32_t last) {
  const bool halves = k == AttentionRead::kF16 || v == AttentionRead::kF16;
  const uint32_t live = halves ? LiveTiles(visible, position, last) : 1u;
  return (k == AttentionRead::kF16 ? live : 1u) | (v == AttentionRead::kF16 ? live : 1u) << 4;
}

// Starts copies of `units` 16-byte units, by `threads` threads (a power of two) of which this is
// number `thread`.
// kAtOnce: copies of a thread between two looks at what is left. The swizzle by value: kept in
// registers over the copies, which the compiler takes for writes.
template <int kAtOnce>
GPU_DEVICE void CopyUnits(uint8_t* to, const uint8_t* from, int units, Swizzle swizzle, int thread,
                          int threads) {
  from += 16 * thread;
  // What spares a test a copy is the same for all threads, and often known when this is compiled.
  const bool even = (units & (kAtOnce * threads - 1)) == 0;
#pragma unroll 1
  for (int done = 0; done < units; done += kAtOnce * threads) {
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int unit = done + threads * k + thread;
      if (even || unit < units) {
        gpu::CpAsync16(to + 16 * Swizzled(swizzle, static_cast<uint32_t>(unit)),
                       from + 16 * threads * k);
      }
    }
    from += 16 * kAtOnce * threads;
  }
}

// K and V of one KV head of one page, where they are stored.
struct PageTensors {
  const uint8_t* base;
  const uint8_t* refine;
  uint32_t head;

  GPU_DEVICE const uint8_t* Base(const AttentionLayout& layout, bool is_k) const {
    return base + (is_k ? layout.k_stride * head : layout.v_first + layout.v_stride * head);
  }
  // Starts the copies of F16 tiles [first, end), the first one to `to`. A tile is a multiple of the
  // units that a swizzle mixes.
  GPU_DEVICE void CopyHalves(const AttentionLayout& layout, const AttentionGeometry& geometry,
                             bool is_k, int first, int end, uint8_t* to, int thread,
                             int threads) const {
    CopyUnits<4>(to, Base(layout, is_k) + 32 * geometry.dim * first,
                 2 * geometry.dim * (end - first), is_k ? geometry.k_halves : geometry.v_halves,
                 thread, threads);
  }
  // Starts the copies of a whole tensor of codes.
  template <int kAtOnce>
  GPU_DEVICE void CopyCodes(const AttentionLayout& layout, const AttentionGeometry& geometry,
                            bool is_k, uint8_t* to, int thread, int threads) const {
    const int dim = geometry.dim;
    const uint8_t* from = Base(layout, is_k);
    const Swizzle swizzle = is_k ? geometry.k_codes : geometry.v_codes;
    CopyUnits<kAtOnce>(to, from, dim, swizzle, thread, threads);
    if ((is_k ? layout.k : layout.v) == AttentionRead::kI4) {
      const uint32_t first = is_k ? layout.k_lo_first : layout.v_lo_first;
      CopyUnits<kAtOnce>(to + 16 * dim, refine + first + layout.lo_stride * head, dim, swizzle,
                         thread, threads);
    }
    CopyUnits<1>(to + 32 * dim, from + 16 * dim, is_k ? dim / 4 : 16 * geometry.v_groups, Swizzle{},
                 thread, threads);
  }
};

// One warp's share of the pages of all splits of a work item, brought through a ring of chunks in
// shared memory by cp.async: kStages - 1 chunks are under way while one is used. Private to the
// warp: no barrier but __syncwarp. A page's chunks are its K, then its V, each either the live
// tiles of F16 or one chunk of codes.
template <int kStages>
class PageStream {
 public:
  GPU_DEVICE PageStream(const AttentionLaunch& launch, const AttentionGeometry& geometry,
                        const AttentionWork& work, int kv_head, int32_t last_position,
                        uint8_t* shared)
      : launch_(launch),
        geometry_(geometry),
        last_position_(last_position),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        split_(work.first_split),
        split_end_(work.first_split + work.split_count),
        page_{nullptr, nullptr, static_cast<uint32_t>(kv_head)} {
    ring_ = shared + geometry.ring + size_t{kStages} * geometry.stage_bytes * warp_;
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
  GPU_DEVICE uint8_t* NextChunk() {
    gpu::CpAsyncWait<kStages - 2>();
    __syncwarp();
    Issue();
    uint8_t* chunk = ring_ + taken_slot_ * geometry_.stage_bytes;
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
    page_.base = static_cast<const uint8_t*>(next_.base);
    page_.refine = static_cast<const uint8_t*>(next_.refine);
    layout_ = next_.layout;
    parts_ = PartsOf(layout.k, layout.v, next_.visible, next_.position, last_position_);
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
      uint8_t* to = ring_ + issued_slot_ * geometry_.stage_bytes;
      // Apart, so that each has its swizzles as constants.
      if (part < 4) {
        IssuePart(part, true, to);
      } else {
        IssuePart(part - 4, false, to);
      }
    }
    gpu::CpAsyncCommit();
    issued_slot_ = issued_slot_ + 1 == kStages ? 0 : issued_slot_ + 1;
  }

  GPU_DEVICE void IssuePart(int tile, bool is_k, uint8_t* to) {
    const AttentionLayout& layout = launch_.layouts[layout_];
    if ((is_k ? layout.k : layout.v) == AttentionRead::kF16) {
      page_.CopyHalves(layout, geometry_, is_k, tile, tile + 1, to, lane_, 32);
    } else {
      page_.CopyCodes<4>(layout, geometry_, is_k, to, lane_, 32);
    }
  }

  const AttentionLaunch& launch_;
  const AttentionGeometry& geometry_;
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
  PageTensors page_;
  int32_t layout_ = 0;
  uint32_t parts_ = 0;  // of the current page, not yet issued
  int32_t issued_slot_ = 0;
  int32_t issued_pages_ = 0;

  // Consumer.
  int32_t taken_slot_ = 0;
  int32_t taken_pages_ = 0;
};

}  // namespace strata::cuda
