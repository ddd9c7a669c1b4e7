// SPDX-License-Identifier: Apache-2.0
/// Reordering of scrambled masks of 16,384 tokens: the order alone on a graph (which bench/reorder_scipy.py times with
/// scipy), all of reorder(), and forward + backward with and without reordering, 4 heads of 64. One thread.
#include "flashmask/reorder.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "flashmask/attention.h"
#include "kit/host_tensor.h"

namespace {

using namespace flashmask;

constexpr std::int64_t kTokens = 16384;

using Pairs = std::vector<VisiblePair>;

/// A band: |i − j| ≤ 16.
Pairs band() {
  Pairs pairs;
  for (std::int64_t i = 0; i < kTokens; ++i) {
    for (std::int64_t j = std::max<std::int64_t>(i - 16, 0); j <= std::min(i + 16, kTokens - 1); ++j)
      pairs.push_back({i, j});
  }
  return pairs;
}

/// A token sees itself and its four neighbours in a square of tokens.
Pairs grid() {
  constexpr std::int64_t kSide = 128;
  Pairs pairs;
  for (std::int64_t y = 0; y < kSide; ++y) {
    for (std::int64_t x = 0; x < kSide; ++x) {
      for (const auto& [dx, dy] : {std::pair{0, 0}, {1, 0}, {-1, 0}, {0, 1}, {0, -1}}) {
        if (x + dx < 0 || x + dx >= kSide || y + dy < 0 || y + dy >= kSide) continue;
        pairs.push_back({y * kSide + x, (y + dy) * kSide + x + dx});
      }
    }
  }
  return pairs;
}

/// The symmetric random mask of Binary Block Masking: i and j see each other with probability max(½·exp(−0.3·|i−j|),
/// 0.0002).
Pairs random_symmetric() {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> uniform;
  Pairs pairs;
  for (std::int64_t i = 0; i < kTokens; ++i) {
    pairs.push_back({i, i});
    for (std::int64_t j = i + 1; j < kTokens; ++j) {
      if (uniform(random) >= std::max(0.5 * std::exp(-0.3 * static_cast<double>(j - i)), 0.0002)) continue;
      pairs.push_back({i, j});
      pairs.push_back({j, i});
    }
  }
  return pairs;
}

/// Causal documents of 1,024 tokens.
Pairs documents() {
  Pairs pairs;
  for (std::int64_t i = 0; i < kTokens; ++i) {
    for (std::int64_t j = i / 1024 * 1024; j <= i; ++j) pairs.push_back({i, j});
  }
  return pairs;
}

/// Makes the pairs when a benchmark runs.
using MakePairs = std::function<Pairs()>;

Pairs scrambled(Pairs pairs) {
  std::vector<std::int64_t> name(kTokens);
  std::iota(name.begin(), name.end(), 0);
  std::shuffle(name.begin(), name.end(), std::mt19937_64(1));
  for (VisiblePair& pair : pairs)
    pair = {name[static_cast<std::size_t>(pair.row)], name[static_cast<std::size_t>(pair.column)]};
  return pairs;
}

double seconds_of(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void order(benchmark::State& state, const MakePairs& pairs) {
  std::vector<std::vector<std::int64_t>> rows(kTokens);
  for (const VisiblePair& pair : pairs()) rows[static_cast<std::size_t>(pair.row)].push_back(pair.column);
  std::vector<std::int64_t> offsets = {0}, columns;
  for (std::vector<std::int64_t>& row : rows) {
    std::sort(row.begin(), row.end());
    columns.insert(columns.end(), row.begin(), row.end());
    offsets.push_back(std::ssize(columns));
  }
  for (auto _ : state) benchmark::DoNotOptimize(reverse_cuthill_mckee(offsets, columns));
}

void whole(benchmark::State& state, const MakePairs& pairs) {
  const Mask mask = from_pairs(kTokens, kTokens, pairs());
  const auto tile = static_cast<std::int32_t>(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(reorder(mask, {tile, tile}, serial_executor()));
  const Reordering made = reorder(mask, {tile, tile}, serial_executor());
  state.counters["before"] = static_cast<double>(made.tiles_before);
  state.counters["after"] = static_cast<double>(made.tiles_after);
  state.SetLabel(made.why);
}

double forward_and_backward(const Plan& planned, const check::AttentionTensors& tensors,
                            std::vector<std::byte>& workspace) {
  workspace.resize(std::max({workspace.size(), planned.workspace_bytes(Direction::forward, 1),
                             planned.workspace_bytes(Direction::backward, 1)}));
  const Execution execution{&serial_executor(), workspace.data(), workspace.size()};
  return seconds_of([&] {
    forward(planned, tensors.forward(), execution);
    backward(planned, tensors.backward(), execution);
  });
}

/// Reports the best times of interleaved runs.
void attention(benchmark::State& state, const MakePairs& pairs) {
  const Mask mask = from_pairs(kTokens, kTokens, pairs());
  Problem problem;
  problem.query_length = problem.key_length = kTokens;
  problem.query_heads = problem.kv_heads = 4;
  problem.head_dim = problem.value_dim = 64;
  const Plan plain = plan(mask, problem);
  const Plan reordered = plan(mask, problem, {.reorder = true});
  const check::AttentionTensors tensors(problem, 1);
  std::vector<std::byte> workspace;
  double plain_seconds = 1e9, reordered_seconds = 1e9;
  for (auto _ : state) {
    plain_seconds = std::min(plain_seconds, forward_and_backward(plain, tensors, workspace));
    const double seconds = forward_and_backward(reordered, tensors, workspace);
    reordered_seconds = std::min(reordered_seconds, seconds);
    state.SetIterationTime(seconds);
  }
  state.counters["plain_ms"] = 1e3 * plain_seconds;
  state.counters["reordered_ms"] = 1e3 * reordered_seconds;
  state.counters["speedup"] = plain_seconds / reordered_seconds;
}

void add(const std::string& name, const MakePairs& pairs) {
  benchmark::RegisterBenchmark(("attention/" + name).c_str(), [=](benchmark::State& state) { attention(state, pairs); })
      ->UseManualTime()
      ->Iterations(3)
      ->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark(("reorder/" + name).c_str(), [=](benchmark::State& state) { whole(state, pairs); })
      ->Arg(64)
      ->Arg(128)
      ->Unit(benchmark::kMillisecond);
}

void add_order(const std::string& name, const MakePairs& pairs) {
  benchmark::RegisterBenchmark(("order/" + name).c_str(), [=](benchmark::State& state) {
    order(state, pairs);
  })->Unit(benchmark::kMillisecond);
}

}  // namespace

int main(int argc, char** argv) {
  const auto band_pairs = [] { return scrambled(band()); };
  const auto grid_pairs = [] { return scrambled(grid()); };
  add_order("band", band_pairs);
  add_order("grid", grid_pairs);
  add("band", band_pairs);
  add("grid", grid_pairs);
  add("documents", [] { return scrambled(documents()); });
  add("random", random_symmetric);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
