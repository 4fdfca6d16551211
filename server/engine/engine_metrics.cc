#include "server/engine/engine_metrics.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace strata {
namespace {

HistogramSnapshot WithBounds(std::vector<double> bounds) {
  HistogramSnapshot histogram;
  histogram.counts.assign(bounds.size() + 1, 0);
  histogram.bounds = std::move(bounds);
  return histogram;
}

}  // namespace

EngineSnapshot EmptyEngineSnapshot() {
  // Seconds. The first set is what dashboards for token servers expect of time to first token;
  // whole requests and their phases last longer, single steps and token gaps less.
  const std::vector<double> first_token = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                           1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
  const std::vector<double> requests = {.01, .05, .1, .25, .5,  1,   2.5, 5,
                                        10,  20,  40, 80,  160, 320, 640, 2560};
  const std::vector<double> steps = {.0005, .001, .0025, .005, .01, .025, .05, .075, .1, .15,
                                     .2,    .3,   .4,    .5,   .75, 1,    2.5, 5,    10, 40};
  EngineSnapshot snapshot;
  snapshot.time_to_first_token = WithBounds(first_token);
  for (HistogramSnapshot* histogram : {&snapshot.request_duration, &snapshot.request_queue,
                                       &snapshot.request_prefill, &snapshot.request_decode}) {
    *histogram = WithBounds(requests);
  }
  for (HistogramSnapshot* histogram :
       {&snapshot.inter_token_latency, &snapshot.step_seconds_prefill,
        &snapshot.step_seconds_decode}) {
    *histogram = WithBounds(steps);
  }
  snapshot.step_batch_tokens = WithBounds({1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024});
  return snapshot;
}

void Observe(double value, HistogramSnapshot* histogram) {
  const auto bucket = std::lower_bound(histogram->bounds.begin(), histogram->bounds.end(), value);
  ++histogram->counts[static_cast<size_t>(bucket - histogram->bounds.begin())];
  histogram->sum += value;
}

}  // namespace strata
