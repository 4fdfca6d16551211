#pragma once

#include "server/engine/engine.h"

namespace strata {

// A snapshot of an engine that has done nothing: every histogram has its buckets from the start.
EngineSnapshot EmptyEngineSnapshot();

// Counts a value in the first bucket whose bound is not below it.
void Observe(double value, HistogramSnapshot* histogram);

}  // namespace strata
