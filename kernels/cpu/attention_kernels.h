#pragma once

#include <cstddef>
#include <cstdint>

// What attention asks of the objects built for one instruction set: pointers and PODs only, no
// function that could be emitted in more than one of them.
namespace strata {

enum class CodeBits : uint8_t { kF16, kI4, kI2 };

// One KV head's part of one page: where its regions lie (page_format.h; an I4 or I2 region is the
// hi plane, then mn, then s) and which tokens count, causality apart.
struct HeadPage {
  const uint8_t* k;
  const uint8_t* k_lo;  // read only where k_bits is kI4
  const uint8_t* v;
  const uint8_t* v_lo;
  uint64_t visible;  // bit t: token t is valid and not skipped
  int32_t position;  // of token 0
  CodeBits k_bits;
  CodeBits v_bits;
};

// A split is a few consecutive pages that share one softmax maximum: at most this many.
inline constexpr int32_t kSplitPagesMax = 16;
inline constexpr int32_t kSplitTokensMax = kSplitPagesMax * 64;
// Floats between two queries' scores: a multiple of 64 bytes, but not of what maps to one cache
// set.
inline constexpr int32_t kScoreStride = kSplitTokensMax + 16;
inline constexpr int32_t kHeadDimMax = 256;
// Queries that share one pass over a page's codes.
inline constexpr int32_t kCodeQueriesMax = 4;

// Partial states of some queries of one KV head. Scores are in log2 units here, so m is too.
// The empty state is l = 0 whatever m and o are.
struct StateView {
  float* o;  // [queries][head_dim]
  float* m;  // [queries]
  float* l;  // [queries]
};

// One block of integer dots, within an instruction set's code: word w of output line a of query i
// is the sum over `lines` lines r of the 16 codes of word w of plane line (r, a) times the 16 bytes
// folded[i][16 r ..].
struct CodeDotArgs {
  const uint8_t* hi;
  const uint8_t* lo;  // unused for I2
  size_t line_stride;
  size_t output_stride;
  int lines;
  const int8_t* folded;
  size_t folded_stride;
  const uint8_t* ahead_hi;  // fetched ahead: as many lines of each plane as are read
  const uint8_t* ahead_lo;  // the same as ahead_hi where there is none
};

struct SplitArgs {
  int32_t head_dim;
  int32_t v_group;         // channels that share a V parameter pair
  int32_t queries;         // rows * group; query i is of row i / group
  int32_t group;           // query heads a KV head
  int32_t first_position;  // of row 0
  int32_t page_count;
  const float* q;         // [queries][head_dim], times log2(e)
  const HeadPage* pages;  // [page_count]
  bool first;             // nobody fetched these pages ahead
  int32_t next_count;     // pages that are read after these, to be fetched ahead; may be 0
  const HeadPage* next;
  float* scores;  // scratch [queries][kScoreStride], 64-byte aligned
  StateView out;
};

// Time that a page of one KV head takes a few queries, in any unit: what decides how the work of a
// decode step is cut. As `strata-bench attend` measures it.
struct PageCosts {
  int32_t f16;
  int32_t i4;
  int32_t i2;
};

// For tests: the integers of one page's scores (attention_code_scores-inl.h).
struct CodeScoreArgs {
  int32_t head_dim;
  int32_t queries;
  CodeBits bits;  // kI4 or kI2
  const uint8_t* k;
  const uint8_t* k_lo;
  const float* q;  // [queries][head_dim], times log2(e)
  int8_t* codes;   // out: [queries][head_dim]
  int32_t* dots;   // out: [queries][64]
};

struct AttentionKernels {
  // The state of every query over the pages of one split. A query's bits depend on nothing but the
  // query and the pages that it sees.
  void (*attend_split)(const SplitArgs& args);
  // Folds `count` source states into the targets.
  void (*merge)(int32_t count, int32_t head_dim, const StateView& source, const StateView& target);
  // out[i] = 2^x[i] for x <= 0, exactly 0 below 2^-126 (for the tests).
  void (*exp2)(const float* x, int32_t count, float* out);
  void (*code_scores)(const CodeScoreArgs& args);
  PageCosts costs;
};

extern const AttentionKernels kAttentionScalar;
extern const AttentionKernels kAttentionAvx2;
extern const AttentionKernels kAttentionAvx512;

}  // namespace strata
