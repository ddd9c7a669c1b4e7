// SPDX-License-Identifier: Apache-2.0
#include "flashmask/schedule.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <numeric>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "flashmask/builders.h"

/// Time and memory of building a schedule, both directions, from a lowered mask, on one core.
namespace flashmask {
namespace {

constexpr TileShape kTile{128, 128};
constexpr std::int64_t kLong = 131'072;
constexpr std::int64_t kMillion = 1'048'576;

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream stream(line);
  for (std::string cell; std::getline(stream, cell, ',');) cells.push_back(cell);
  return cells;
}

/// Lengths of whole documents (prompt and answer) in file order, as many as fit.
std::vector<std::int64_t> alpaca_documents(std::int64_t tokens) {
  std::ifstream file(FLASHMASK_DATA_DIR "/alpaca_lengths.csv");
  if (!file) throw std::runtime_error("cannot read " FLASHMASK_DATA_DIR "/alpaca_lengths.csv");
  std::string line;
  std::getline(file, line);
  const std::vector<std::string> header = split(line);
  std::vector<std::int64_t> documents;
  for (std::int64_t left = tokens; std::getline(file, line);) {
    const std::vector<std::string> cells = split(line);
    std::int64_t length = 0;
    for (std::size_t i = 0; i < header.size(); ++i) {
      if (header[i] == "gpt2_prompt" || header[i] == "gpt2_out") length += std::stoll(cells[i]);
    }
    if (length > left) break;
    left -= length;
    documents.push_back(length);
  }
  return documents;
}

/// From the middle row on, each row drops one random key that is still kept.
Mask random_eviction(std::int64_t tokens) {
  std::mt19937 random(12);
  std::vector<std::int64_t> alive(static_cast<std::size_t>(tokens / 2));
  std::iota(alive.begin(), alive.end(), 0);
  std::vector<std::int64_t> evicted_at(static_cast<std::size_t>(tokens), tokens);
  for (std::int64_t row = tokens / 2; row < tokens; ++row) {
    std::swap(alive[random() % alive.size()], alive.back());
    evicted_at[static_cast<std::size_t>(alive.back())] = row;
    alive.back() = row;
  }
  return masks::random_eviction(tokens, evicted_at, 1);
}

void build_schedule(benchmark::State& state, const Mask& mask) {
  const LoweredMask lowered = lower(mask);
  for (auto _ : state) benchmark::DoNotOptimize(schedule(lowered, kTile, Visit::active, serial_executor()));
  const TileSchedule built = schedule(lowered, kTile, Visit::active, serial_executor());
  state.counters["bytes"] = static_cast<double>(built.memory_bytes());
  state.counters["full"] = static_cast<double>(built.counts().full);
  state.counters["partial"] = static_cast<double>(built.counts().partial);
  state.counters["skip"] = static_cast<double>(built.counts().skip);
}

void alpaca_causal_document(benchmark::State& state) {
  build_schedule(state, masks::causal_document(alpaca_documents(kLong), kLong));
}

void alpaca_document(benchmark::State& state) {
  build_schedule(state, masks::document(alpaca_documents(kLong), kLong));
}

void eviction(benchmark::State& state) { build_schedule(state, random_eviction(kLong)); }

void million_causal(benchmark::State& state) { build_schedule(state, masks::causal(kMillion, kMillion)); }

void million_causal_document(benchmark::State& state) {
  const std::vector<std::int64_t> documents(kMillion / 4096, 4096);
  build_schedule(state, masks::causal_document(documents, kMillion));
}

void million_sliding_window(benchmark::State& state) {
  build_schedule(state, masks::sliding_window(kMillion, kMillion, 1024));
}

/// Times the steps from the builder's numbers to mask and schedule. Blocks of 80 tokens cut cells of 64.
void big_bird(benchmark::State& state) {
  set_thread_count(1);
  const auto build = [&] { return masks::big_bird(65'536, {.block = state.range(0)}); };
  const auto schedule_of = [](const Mask& mask) {
    return schedule(lower(mask), kTile, Visit::active, serial_executor());
  };
  for (auto _ : state) benchmark::DoNotOptimize(schedule_of(build()));
  const Mask mask = build();
  state.counters["mask bytes"] = static_cast<double>(mask.lowered().memory_bytes());
  state.counters["bytes"] = static_cast<double>(schedule_of(mask).memory_bytes());
  set_thread_count(0);
}

/// Times the steps from booleans in memory to mask and schedule, beside one pass of memchr over them in the same run.
void dense(benchmark::State& state, const std::vector<std::uint8_t>& scores, std::int64_t tokens) {
  std::vector<double> ratios;
  const auto seconds_of = [](const auto& body) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  for (auto _ : state) {
    const double pass = seconds_of([&] { benchmark::DoNotOptimize(std::memchr(scores.data(), 2, scores.size())); });
    const double build = seconds_of([&] {
      const Mask mask =
          from_dense({.batch = 1, .heads = 1, .rows = tokens, .columns = tokens}, scores, serial_executor());
      benchmark::DoNotOptimize(schedule(lower(mask), kTile, Visit::active, serial_executor()));
    });
    state.SetIterationTime(build);
    ratios.push_back(build / pass);
  }
  std::nth_element(ratios.begin(), ratios.begin() + std::ssize(ratios) / 2, ratios.end());
  state.counters["memchr passes"] = ratios[ratios.size() / 2];
}

constexpr std::int64_t kDense = 16'384;

void dense_causal_document(benchmark::State& state) {
  set_thread_count(1);
  dense(state, expand(masks::causal_document(alpaca_documents(kDense), kDense)), kDense);
  set_thread_count(0);
}

/// The worst case: every cell is partial.
void dense_coin(benchmark::State& state) {
  std::mt19937_64 random(1);
  std::vector<std::uint8_t> scores(static_cast<std::size_t>(kDense * kDense));
  for (std::uint8_t& score : scores) score = random() % 2;
  dense(state, scores, kDense);
}

BENCHMARK(dense_causal_document)
    ->Name("build/dense_causal_document/16384")
    ->UseManualTime()
    ->Iterations(15)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(dense_coin)->Name("build/dense_coin/16384")->UseManualTime()->Iterations(15)->Unit(benchmark::kMillisecond);
BENCHMARK(alpaca_causal_document)->Name("schedule/alpaca_causal_document/131072")->Unit(benchmark::kMillisecond);
BENCHMARK(alpaca_document)->Name("schedule/alpaca_document/131072")->Unit(benchmark::kMillisecond);
BENCHMARK(eviction)->Name("schedule/random_eviction/131072")->Unit(benchmark::kMillisecond);
BENCHMARK(million_causal)->Name("schedule/causal/1048576")->Unit(benchmark::kMillisecond);
BENCHMARK(million_causal_document)->Name("schedule/causal_document_4096/1048576")->Unit(benchmark::kMillisecond);
BENCHMARK(million_sliding_window)->Name("schedule/sliding_window_1024/1048576")->Unit(benchmark::kMillisecond);
BENCHMARK(big_bird)->Name("build/big_bird/65536/block")->Arg(64)->Arg(80)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace flashmask
