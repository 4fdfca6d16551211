#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention.h"
#include "tests/kernels/attention_expect.h"

namespace strata {

// What AttentionBackend promises (A1 to A4 and the equal bits of a row), as expectations on any
// backend. Each device's tests call them with sizes that it can afford.

// Skipped tokens never reach the result: a block's half, a whole block, every other token, and
// bits past the end.
void ExpectSkippedTokensAreNotSeen(AttentionBackend* attention, const BlockKinds& kinds);

// A4, to the letter: what is hidden may be infinite or not a number.
void ExpectHiddenTokensMayHoldAnything(AttentionBackend* attention);

// No token that may be seen, or with `no_runs` none at all: the empty state.
void ExpectNothingSeenIsTheEmptyState(AttentionBackend* attention, bool no_runs);

// A1 and A3, at every place to cut: parts attended apart and merged are the whole, and so is
// `attention`'s part folded into states of `first`, another backend or the same.
void ExpectPartsMergeToTheWhole(AttentionBackend* attention, AttentionBackend* first,
                                const TestSequence& sequence, const Step& step);

// One channel of K with a step 10^4 times the others', and the query's weight on it to match or
// not: nothing overflows, and the folded scale serves the channels that matter.
void ExpectAHugeStepInOneChannelIsServed(AttentionBackend* attention, const BlockKinds& kinds);

// Every `stride`th row of the step has the bits it has alone, when later tokens did not exist.
void ExpectRowsHaveTheBitsOfDecoding(AttentionBackend* attention, const TestSequence& sequence,
                                     const Step& step, int32_t stride);

// Sequences of one call, one of them of `blocks`, have the bits they have alone; rows that belong
// to none keep their states.
void ExpectSequencesHaveTheBitsOfBeingAlone(AttentionBackend* attention,
                                            const std::vector<BlockKinds>& blocks,
                                            int32_t prefill_rows);

}  // namespace strata
