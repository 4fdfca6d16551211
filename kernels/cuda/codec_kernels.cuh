#pragma once

// The page codec on a GPU: one thread block encodes one head's K or V of one page.
//
// Both tensors are the same work on a matrix of groups (page_format.h). K: 64 tokens a channel, in
// shared memory as the page has them, [tile][channel][16 tokens]. V: G channels a token,
// [token][channel]. First every group's minimum, maximum and parameters; then one thread makes four
// neighbouring words of a plane line, 16 reduction elements each, and stores them at once. The
// reads leave shared memory without bank conflicts by the padding below, and the writes are 16
// bytes a thread, neighbours to neighbours: what a link to pinned host memory wants.
//
// Roundings are those of the reference codec: all named, none fused.

#include "kernels/cuda/codec_launch.h"
#include "kernels/cuda/gpu_math.cuh"

namespace strata::cuda {

inline constexpr int32_t kTokens = 64;
inline constexpr int32_t kEncodeThreads = 128;
inline constexpr int32_t kEncodePagesMax = 64;  // of one launch: their addresses are its parameters

// One page as the launch has resolved it.
struct EncodeJob {
  const std::byte* source;
  std::byte* base;
  std::byte* refine;
  KvKind kind[2];         // of K, of V
  uint32_t lo_offset[2];  // of a tensor's lo planes in refine
  uint32_t v_offset;      // of V in base
};

struct EncodeParams {
  int32_t head_dim;
  int32_t v_group;
  int32_t kv_heads;
  int32_t first_page;  // of reports
  uint32_t* reports;
  EncodeJob jobs[kEncodePagesMax];
};

// Where the parts lie in dynamic shared memory. Rows of K are the 16 tokens of a channel, 32 bytes,
// and 16 channels are followed by 32 bytes of nothing; rows of V are the channels of a token,
// followed by 16 bytes.
struct EncodeShared {
  int32_t head_dim;
  bool is_v;

  GPU_HOST_DEVICE int32_t StageBytes() const {
    const int32_t k = kTokens / 16 * head_dim * 32 + kTokens / 16 * (head_dim / 16) * 32;
    const int32_t v = kTokens * (head_dim * 2 + 16);
    return k > v ? k : v;
  }
  // Byte offset of the 16-byte chunk `index` of the source.
  GPU_HOST_DEVICE int32_t Chunk(int32_t index) const {
    if (!is_v) return index * 16 + index / 32 * 32;
    const int32_t chunks = head_dim / 8;  // of a token
    return index / chunks * (head_dim * 2 + 16) + index % chunks * 16;
  }
};

// Bytes of shared memory: the source, then minimum and divisor (float), mn and s (half) a group.
inline int32_t EncodeSharedBytes(int32_t head_dim, int32_t v_groups) {
  const int32_t groups = head_dim > v_groups * kTokens ? head_dim : v_groups * kTokens;
  return EncodeShared{head_dim, false}.StageBytes() + groups * 12;
}

// Whether one of the two halves in a word is infinite or NaN.
GPU_DEVICE bool HasNonFinite(uint32_t halves) {
  return (((halves & 0x7c007c00u) + 0x04000400u) & 0x80008000u) != 0;
}

// Copies one head's tensor as it is, looking for values that are not finite.
GPU_DEVICE bool CopyHead(const std::byte* source, int32_t chunks, std::byte* to) {
  bool bad = false;
  for (int32_t i = threadIdx.x; i < chunks; i += kEncodeThreads) {
    const uint4 x = gpu::LoadStreaming16(source + 16 * i);
    bad |= HasNonFinite(x.x) || HasNonFinite(x.y) || HasNonFinite(x.z) || HasNonFinite(x.w);
    gpu::StoreStreaming16(to + 16 * i, x);
  }
  return bad;
}

// Copies it to shared memory, all of it in flight at once.
GPU_DEVICE bool StageHead(const std::byte* source, int32_t chunks, const EncodeShared& shared,
                          unsigned char* stage) {
  for (int32_t i = threadIdx.x; i < chunks; i += kEncodeThreads) {
    gpu::CpAsync16(stage + shared.Chunk(i), source + 16 * i);
  }
  gpu::CpAsyncCommit();
  gpu::CpAsyncWait<0>();
  bool bad = false;
  for (int32_t i = threadIdx.x; i < chunks; i += kEncodeThreads) {
    const uint4 x = *reinterpret_cast<const uint4*>(stage + shared.Chunk(i));
    bad |= HasNonFinite(x.x) || HasNonFinite(x.y) || HasNonFinite(x.z) || HasNonFinite(x.w);
  }
  return bad;
}

// Reports the first value that is not finite of one head's tensor.
GPU_DEVICE void ReportNonFinite(const std::byte* source, int32_t head_dim, int32_t head, bool is_v,
                                uint32_t* report) {
  const auto* halves = reinterpret_cast<const uint16_t*>(source);
  uint32_t first = kAllFinite;
  for (int32_t i = threadIdx.x; i < kTokens * head_dim; i += kEncodeThreads) {
    if ((halves[i] & 0x7c00u) != 0x7c00u) continue;
    const int32_t token = is_v ? i / head_dim : i / (16 * head_dim) * 16 + i % 16;
    const int32_t channel = is_v ? i % head_dim : i / 16 % head_dim;
    first = min(first, static_cast<uint32_t>(head << 15 | token << 9 | channel << 1 | int{is_v}));
  }
  if (first != kAllFinite) atomicMin(report, first);
}

// Minimum and maximum of the eight halves of a chunk and of what there is already.
GPU_DEVICE void TakeChunk(const unsigned char* chunk, float* least, float* greatest) {
  const uint4 x = *reinterpret_cast<const uint4*>(chunk);
  const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float value = gpu::HalfBitsToFloat(words[i / 2] >> (16 * (i % 2)));
    *least = fminf(*least, value);
    *greatest = fmaxf(*greatest, value);
  }
}

// What the codes of the groups are made with.
struct GroupTables {
  float* mn;
  float* divisor;
  uint16_t* mn_half;
  uint16_t* s_half;
};

GPU_DEVICE void MakeGroup(float least, float greatest, int32_t group, const GroupTables& tables) {
  // + 0 makes a group of zeros of both signs start at +0, and a range of -0 be +0.
  const float mn = __fadd_rn(least, 0.0f);
  const float range = __fadd_rn(gpu::SubUp(greatest, mn), 0.0f);
  const uint32_t s = gpu::FloatToHalfBitsUp(__fmul_rn(range, 0x1p-4f));
  tables.mn[group] = mn;
  // A zero step (all values are mn) divides zeros: any positive divisor gives code 0.
  tables.divisor[group] = fmaxf(gpu::HalfBitsToFloat(s), 0x1p-25f);
  tables.mn_half[group] = static_cast<uint16_t>(gpu::FloatToHalfBits(mn));  // exact
  tables.s_half[group] = static_cast<uint16_t>(s);
}

// K: a thread a channel. V: a thread a token and group.
GPU_DEVICE void MakeGroups(const EncodeParams& params, bool is_v, int32_t groups,
                           const unsigned char* stage, const GroupTables& tables) {
  const EncodeShared shared = {params.head_dim, is_v};
  for (int32_t g = threadIdx.x; g < groups; g += kEncodeThreads) {
    float least = INFINITY, greatest = -INFINITY;
    if (is_v) {
      const int32_t chunk =
          g % kTokens * (params.head_dim / 8) + g / kTokens * (params.v_group / 8);
      for (int32_t i = 0; i < params.v_group / 8; ++i) {
        TakeChunk(stage + shared.Chunk(chunk + i), &least, &greatest);
      }
    } else {
      for (int32_t tile = 0; tile < kTokens / 16; ++tile) {
        const int32_t chunk = (tile * params.head_dim + g) * 2;
        TakeChunk(stage + shared.Chunk(chunk), &least, &greatest);
        TakeChunk(stage + shared.Chunk(chunk + 1), &least, &greatest);
      }
    }
    MakeGroup(least, greatest, g, tables);
  }
}

GPU_DEVICE uint32_t CodeOf(uint32_t half, float mn, float divisor) {
  const float steps = __fdiv_rn(__fsub_rn(gpu::HalfBitsToFloat(half), mn), divisor);
  return static_cast<uint32_t>(min(__float2int_rz(steps), 15));
}

// Four neighbouring words of line (tt, j) of both planes.
struct PlaneWords {
  uint32_t hi[4] = {0, 0, 0, 0};
  uint32_t lo[4] = {0, 0, 0, 0};
};

// first: the halves of element 0; the next element's are `stride` bytes on, its parameters the
// next.
GPU_DEVICE PlaneWords EncodeWords(const unsigned char* first, int32_t stride, const float* mn,
                                  const float* divisor) {
  PlaneWords words;
#pragma unroll 4
  for (int e = 0; e < 16; ++e) {
    const uint2 halves = *reinterpret_cast<const uint2*>(first + e * stride);
    const int shift = 8 * (e % 4) + 2 * (e / 4);
    const uint32_t lanes[4] = {halves.x & 0xffffu, halves.x >> 16, halves.y & 0xffffu,
                               halves.y >> 16};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t code = CodeOf(lanes[i], mn[e], divisor[e]);
      words.hi[i] |= code >> 2 << shift;
      words.lo[i] |= (code & 3) << shift;
    }
  }
  return words;
}

GPU_DEVICE void EncodeLines(const EncodeParams& params, bool is_v, const unsigned char* stage,
                            const GroupTables& tables, std::byte* hi, std::byte* lo) {
  const int32_t dim = params.head_dim;
  const EncodeShared shared = {dim, is_v};
  for (int32_t task = threadIdx.x; task < dim; task += kEncodeThreads) {
    const int32_t quad = task % 4, line = task / 4;
    const int32_t tt = line / (dim / 16), j = line % (dim / 16);
    PlaneWords words;
    if (is_v) {
      const int32_t group = 16 * j / params.v_group * kTokens + 16 * tt;
      const int32_t stride = 2 * dim + 16;
      words = EncodeWords(stage + 16 * tt * stride + 32 * j + 8 * quad, stride, tables.mn + group,
                          tables.divisor + group);
    } else {
      words = EncodeWords(stage + shared.Chunk((tt * dim + 16 * j) * 2) + 8 * quad, 32,
                          tables.mn + 16 * j, tables.divisor + 16 * j);
    }
    const int32_t at = 64 * line + 16 * quad;
    gpu::StoreStreaming16(hi + at, make_uint4(words.hi[0], words.hi[1], words.hi[2], words.hi[3]));
    if (lo == nullptr) continue;
    gpu::StoreStreaming16(lo + at, make_uint4(words.lo[0], words.lo[1], words.lo[2], words.lo[3]));
  }
}

// Parameter arrays are multiples of 32 bytes, and planes and arrays fill a head's bytes: head dims
// are multiples of 16, so that there is no padding to clear (PageFormat F2).
GPU_DEVICE void StoreGroups(const GroupTables& tables, int32_t groups, std::byte* to) {
  for (int32_t i = threadIdx.x; i < groups / 8; i += kEncodeThreads) {
    const uint4 mn = *reinterpret_cast<const uint4*>(tables.mn_half + 8 * i);
    const uint4 s = *reinterpret_cast<const uint4*>(tables.s_half + 8 * i);
    gpu::StoreStreaming16(to + 16 * i, mn);
    gpu::StoreStreaming16(to + 2 * groups + 16 * i, s);
  }
}

// Grid: x = 2 * kv_heads (K and V of a head), y = pages.
__global__ void __launch_bounds__(kEncodeThreads)
    EncodePagesKernel(const __grid_constant__ EncodeParams params) {
  GPU_DYN_SHARED(unsigned char, stage);
  const EncodeJob& job = params.jobs[blockIdx.y];
  const int32_t head = blockIdx.x / 2, dim = params.head_dim;
  const bool is_v = blockIdx.x % 2 != 0;
  const KvKind kind = job.kind[is_v ? 1 : 0];
  const int32_t f16_bytes = 2 * kTokens * dim, plane_bytes = 16 * dim;
  const int32_t groups = is_v ? dim / params.v_group * kTokens : dim;
  const std::byte* source =
      job.source + size_t{1} * f16_bytes * (is_v ? params.kv_heads + head : head);
  const int32_t head_bytes = kind == KvKind::kF16 ? f16_bytes : plane_bytes + 4 * groups;
  std::byte* base = job.base + (is_v ? job.v_offset : 0) + size_t{1} * head_bytes * head;

  const EncodeShared shared = {dim, is_v};
  const bool bad = kind == KvKind::kF16 ? CopyHead(source, f16_bytes / 16, base)
                                        : StageHead(source, f16_bytes / 16, shared, stage);
  if (__syncthreads_or(bad)) {
    ReportNonFinite(source, dim, head, is_v, params.reports + params.first_page + blockIdx.y);
    return;
  }
  if (kind == KvKind::kF16) return;

  GroupTables tables;
  tables.mn = reinterpret_cast<float*>(stage + shared.StageBytes());
  tables.divisor = tables.mn + groups;
  tables.mn_half = reinterpret_cast<uint16_t*>(tables.divisor + groups);
  tables.s_half = tables.mn_half + groups;
  MakeGroups(params, is_v, groups, stage, tables);
  __syncthreads();
  std::byte* lo = kind != KvKind::kI4
                      ? nullptr
                      : job.refine + job.lo_offset[is_v ? 1 : 0] + size_t{1} * plane_bytes * head;
  EncodeLines(params, is_v, stage, tables, base, lo);
  StoreGroups(tables, groups, base + plane_bytes);
}

}  // namespace strata::cuda
