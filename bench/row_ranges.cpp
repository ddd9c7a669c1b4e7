// SPDX-License-Identifier: Apache-2.0
#include "flashmask/row_ranges.h"

#include <benchmark/benchmark.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "flashmask/builders.h"

/// Time of writing a mask of 1,048,576 tokens as what its rows see, and of reading it back, on one core.
namespace flashmask {
namespace {

constexpr std::int64_t kMillion = 1'048'576;

Mask documents() { return masks::causal_document(std::vector<std::int64_t>(1000, kMillion / 1000), kMillion); }

Mask window() { return masks::sliding_window(kMillion, kMillion, 4096); }

/// A question of 256 tokens and six answers of 128, again and again.
Mask shared_questions() {
  const std::vector<masks::SharedQuestion> questions(kMillion / 1024, {256, std::vector<std::int64_t>(6, 128)});
  return masks::shared_question(questions, kMillion);
}

void write(benchmark::State& state, const Mask& mask) {
  for (auto _ : state) benchmark::DoNotOptimize(to_row_ranges(mask));
  state.counters["ends"] = to_row_ranges(mask).ends;
}

void read(benchmark::State& state, const Mask& mask) {
  const RowRanges ranges = to_row_ranges(mask);
  for (auto _ : state) benchmark::DoNotOptimize(from_row_ranges(ranges.values, ranges.shape, ranges.ends));
}

BENCHMARK_CAPTURE(write, documents, documents())->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(write, window, window())->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(write, shared_questions, shared_questions())->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(read, documents, documents())->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(read, window, window())->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(read, shared_questions, shared_questions())->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace flashmask
