#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

// Attention over pages on a CUDA device: what the host hands to the kernels, and the launches.
// PODs and functions alone, for nvcc and for the host compiler. attention_plan.h builds the lists.
//
// A call of attention is: LaunchAttention (each work item leaves partial states in its slots), then
// LaunchAttentionMerge (folds the slots of every query in a fixed order, with states that came from
// elsewhere) on the same stream. Both only enqueue. Every pointer must be readable by the device
// and stay valid until the stream has passed the launch: device memory, or pinned mapped host
// memory, which the kernels read in place, each byte once a call.
namespace strata::cuda {

// How one tensor of a page is read.
enum class AttentionRead : uint8_t { kF16 = 0, kI4 = 1, kI2 = 2 };

// Where the regions of one page format lie (cache/layout/page_format.h), in bytes.
struct AttentionLayout {
  uint32_t k_stride;    // BASE: from one head's K to the next; K of head 0 is at 0
  uint32_t v_first;     // BASE: V of head 0
  uint32_t v_stride;    // BASE: from one head's V to the next
  uint32_t k_lo_first;  // REFINE: lo plane of K of head 0; read only where K is read as I4
  uint32_t v_lo_first;  // REFINE: lo plane of V of head 0; read only where V is read as I4
  uint32_t lo_stride;   // REFINE: from one head's lo plane to the next
  AttentionRead k;
  AttentionRead v;
  uint8_t unused[2];
};
// {F16, I4, I4 read as I2, I2} for K and for V.
inline constexpr int kAttentionLayoutsMax = 16;

// One page of one sequence. Aligned to be loaded in two pieces.
struct alignas(16) AttentionPage {
  const void* base;    // 16-byte aligned
  const void* refine;  // 16-byte aligned; may be null where its layout reads neither tensor as I4
  uint64_t visible;    // bit t: token t holds something and is not to be skipped
  int32_t position;    // of token 0: a multiple of 64
  int32_t layout;      // index into AttentionLaunch::layouts
};

// Shares of a split: share s is the pages whose block index is s modulo this. Each makes a state of
// its own, and a split's is those of its shares folded in their order.
inline constexpr int kAttentionShares = 4;

// A few pages of one sequence whose states are made together: share s has pages[first_page +
// begin[s]] and the count[s] - 1 after it.
struct AttentionSplit {
  int32_t first_page;
  uint8_t begin[kAttentionShares];
  uint8_t count[kAttentionShares];
};

// One block's work for each KV head: the queries of one tile over some splits, folded in their
// order into one state a query. Query i of a KV head's tile is flat query f = first_query + i: row
// first_row + f / group, query head kv_head * group + f % group, group = query_heads / kv_heads.
struct AttentionWork {
  int32_t first_row;       // row in q of flat query 0
  int32_t first_position;  // of that row; the row at position p sees tokens 0..p
  int32_t first_query;
  int32_t queries;      // 1..the tile's width (kAttentionDecodeQueries, or what prefill has)
  int32_t first_state;  // state of (kv_head, query i) is first_state + kv_head * queries + i
  int32_t first_split;
  int32_t split_count;  // at least 1
};

// All work of one tile, for the merge: states [slot][kv_head][query]. A state with l = 0 is empty,
// and a tile may have no slot. Folding slots of one split each, or one slot of all splits, gives
// the same bits.
struct AttentionTile {
  int32_t first_row;
  int32_t first_query;
  int32_t queries;
  int32_t first_state;
  int32_t slots;
};

// Partial states, one a (row, query head): kernels/attention.h's PartialStates by pointers. m is in
// natural-log units (A2); the empty state has l = 0.
struct AttentionStates {
  float* o;  // [rows][query_heads][head_dim]
  float* m;  // [rows][query_heads]
  float* l;  // [rows][query_heads]
};

struct AttentionLaunch {
  int32_t query_heads;
  int32_t kv_heads;
  int32_t head_dim;
  const float* q;  // [rows][query_heads][head_dim], stored basis, times 1/sqrt(head_dim)
  const AttentionPage* pages;
  const AttentionSplit* splits;
  const AttentionWork* work;  // decode_count items of decode tiles, then prefill_count of prefill's
  int32_t decode_count;
  int32_t prefill_count;
  int32_t prefill_queries;  // of a prefill tile: what PrepareAttention said, or half or a quarter
  int32_t state_count;
  float* states;  // AttentionStateFloats(state_count, head_dim), written by the work
  AttentionLayout layouts[kAttentionLayoutsMax];
};

struct AttentionMerge {
  int32_t query_heads;
  int32_t kv_heads;
  int32_t head_dim;
  const AttentionTile* tiles;
  int32_t tile_count;
  int32_t queries_max;  // of a tile
  int32_t state_count;
  const float* states;
  // Folded in last, where not null: what another device made of its pages (near-data attention), or
  // what is to be continued. Mapped host memory will do. Read for the tiles' rows alone.
  AttentionStates other;
  // With m and l null: o gets o / l (zeros where nothing was seen). Else the merged partial states.
  // Rows that no tile has are not written. May be the same as `other`.
  AttentionStates out;
};

// Queries of a KV head that a decode tile can have. Its block's warps have a share of the pages
// each, and all of the queries. In a prefill tile a warp has queries of its own and all warps read
// each page together. The arithmetic of a query is the same in either, bit for bit.
inline constexpr int kAttentionDecodeQueries = 8;

// Floats of `states`: o [state_count][head_dim], m [state_count], l [state_count].
constexpr size_t AttentionStateFloats(int64_t state_count, int head_dim) {
  return static_cast<size_t>(state_count) * (head_dim + 2);
}

// What a plan wants to know of a device.
struct AttentionDevice {
  int32_t prefill_queries = 0;  // of a prefill tile at most; 0: there is no prefill
  int32_t multiprocessors = 1;
};

// Once for the current device and head dim, before the first launch: lets the kernels have their
// shared memory. There is no prefill where that is too small for tiles that are worth it.
// cudaErrorInvalidValue for a head dim that is not a multiple of 16 in 16..256, or one whose pages
// do not fit this device's shared memory.
cudaError_t PrepareAttention(int head_dim, AttentionDevice* device);

// Enqueues the work of one layer: at most one kernel for the decode tiles and one for prefill's.
cudaError_t LaunchAttention(const AttentionLaunch& launch, cudaStream_t stream);

cudaError_t LaunchAttentionMerge(const AttentionMerge& merge, cudaStream_t stream);

// One stretch of bytes to bring from (pinned, mapped) host memory to device memory.
struct GatherCopy {
  const void* source;  // 16-byte aligned
  void* target;        // 16-byte aligned
  uint64_t bytes;      // a multiple of 16
};

// Stages pages ahead of their layer: one kernel for the whole list, 16 bytes a thread, instead of a
// cudaMemcpyAsync of 5-7 us a page. `copies` is read by the device.
cudaError_t LaunchGather(const GatherCopy* copies, int32_t count, cudaStream_t stream);

}  // namespace strata::cuda
