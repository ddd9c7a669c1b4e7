// SPDX-License-Identifier: Apache-2.0
/// Speed of the CPU kernels relative to the peak of the core, measured in the same run. One benchmark per row of
/// docs/benchmarks.md; times are for one thread unless the name says otherwise.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "flashmask/flashmask.h"

namespace {

using namespace flashmask;

double seconds_of(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

/// A problem with its tensors, ready to run in either direction. Values are uniform in ±1.7: a standard deviation near
/// 1.
class Attention {
 public:
  Attention(const Mask& mask, const Problem& problem, const PlanOptions& options = {})
      : plan_(plan(mask, problem, options)),
        visible_(explain(mask).visible_pairs * problem.batch * problem.query_heads / mask.shape().batch /
                 mask.shape().heads) {
    const std::int64_t b = problem.batch, sq = problem.query_length, sk = problem.key_length;
    const std::int64_t hq = problem.query_heads, hk = problem.kv_heads;
    q_ = tensor({b, sq, hq, problem.head_dim}, true);
    k_ = tensor({b, sk, hk, problem.head_dim}, true);
    v_ = tensor({b, sk, hk, problem.value_dim}, true);
    o_ = tensor({b, sq, hq, problem.value_dim}, false);
    grad_o_ = tensor({b, sq, hq, problem.value_dim}, true);
    grad_q_ = tensor({b, sq, hq, problem.head_dim}, false);
    grad_k_ = tensor({b, sk, hk, problem.head_dim}, false);
    grad_v_ = tensor({b, sk, hk, problem.value_dim}, false);
    lse_values_.resize(static_cast<std::size_t>(b * hq * sq));
    lse_ = contiguous(lse_values_.data(), DType::f32, {b, hq, sq});
    reserve_workspace();
    run(Direction::forward);
  }

  void run(Direction direction) {
    const Execution execution{nullptr, workspace_.data(), workspace_.size()};
    if (direction == Direction::forward) {
      forward(plan_, {q_, k_, v_, o_, lse_}, execution);
    } else {
      backward(plan_, {q_, k_, v_, o_, lse_, grad_o_, {}, grad_q_, grad_k_, grad_v_}, execution);
    }
  }

  /// Multiply-adds of the visible scores, two operations each: 2 products forward, 5 backward.
  double operations(Direction direction) const {
    const auto d = static_cast<double>(plan_.problem().head_dim), dv = static_cast<double>(plan_.problem().value_dim);
    const double products = direction == Direction::forward ? d + dv : 3 * d + 2 * dv;
    return 2.0 * static_cast<double>(visible_) * products;
  }

  /// Seconds of copying q, k, v and o once.
  double copy_seconds() {
    std::vector<double> times;
    for (int i = 0; i < 5; ++i)
      times.push_back(seconds_of([&] {
        for (const std::vector<std::byte>& bytes : storage_) {
          if (&bytes - storage_.data() >= 4) break;
          copy_.resize(bytes.size());
          std::memcpy(copy_.data(), bytes.data(), bytes.size());
          benchmark::DoNotOptimize(copy_.data());
        }
      }));
    return median(times);
  }

  const Plan& planned() const { return plan_; }
  std::size_t workspace_bytes() const { return workspace_.size(); }

  void reserve_workspace() {
    const int workers = default_executor().workers();
    workspace_.resize(std::max(plan_.workspace_bytes(Direction::forward, workers),
                               plan_.workspace_bytes(Direction::backward, workers)));
  }

 private:
  TensorView tensor(std::initializer_list<std::int64_t> shape, bool random) {
    std::int64_t size = 1;
    for (const std::int64_t n : shape) size *= n;
    const DType dtype = plan_.problem().dtype;
    storage_.emplace_back(static_cast<std::size_t>(size) * size_in_bytes(dtype));
    if (random) fill(storage_.back(), dtype);
    return contiguous(storage_.back().data(), dtype, shape);
  }

  void fill(std::vector<std::byte>& bytes, DType dtype) {
    std::uniform_real_distribution<float> uniform(-1.7F, 1.7F);
    for (std::size_t i = 0; i < bytes.size(); i += size_in_bytes(dtype)) {
      const float value = uniform(random_);
      if (dtype == DType::f32) {
        std::memcpy(&bytes[i], &value, sizeof value);
      } else {
        // The high half of a float is a bfloat16; for a float16 any finite number of that size will do.
        std::uint32_t bits = 0;
        std::memcpy(&bits, &value, sizeof bits);
        const auto half =
            static_cast<std::uint16_t>(dtype == DType::bf16 ? bits >> 16 : 0x3800U | (bits >> 16 & 0x83ffU));
        std::memcpy(&bytes[i], &half, sizeof half);
      }
    }
  }

  Plan plan_;
  std::int64_t visible_;
  std::mt19937 random_{1};
  std::vector<std::vector<std::byte>> storage_;
  std::vector<std::byte> workspace_, copy_;
  std::vector<float> lse_values_;
  TensorView q_, k_, v_, o_, lse_, grad_o_, grad_q_, grad_k_, grad_v_;
};

Problem square(std::int64_t tokens, std::int64_t heads, std::int64_t dim, DType dtype = DType::f32) {
  Problem problem;
  problem.query_length = problem.key_length = tokens;
  problem.query_heads = problem.kv_heads = heads;
  problem.head_dim = problem.value_dim = dim;
  problem.dtype = dtype;
  return problem;
}

std::vector<std::int64_t> alpaca_documents(std::int64_t tokens) {
  std::ifstream file(FLASHMASK_DATA_DIR "/alpaca_lengths.csv");
  std::string line;
  std::getline(file, line);
  std::vector<std::int64_t> lengths;
  std::int64_t sum = 0;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::int64_t prompt = 0, output = 0;
    char comma = 0;
    fields >> prompt >> comma >> output;
    if (sum + prompt + output > tokens) break;
    lengths.push_back(prompt + output);
    sum += lengths.back();
  }
  return lengths;
}

/// Median rate over the benchmark's iterations, and its share of the peak measured between them.
void report_rate(benchmark::State& state, Attention& attention, Direction direction) {
  std::vector<double> rates, shares;
  for (auto _ : state) {
    const double peak = measure_peak(attention.planned().kernel(direction));
    const double seconds = seconds_of([&] { attention.run(direction); });
    state.SetIterationTime(seconds);
    rates.push_back(attention.operations(direction) / seconds);
    shares.push_back(100 * rates.back() / peak);
  }
  state.counters["GFLOP/s"] = median(rates) * 1e-9;
  state.counters["%peak"] = median(shares);
}

using MaskOfLength = std::function<Mask(std::int64_t)>;

struct Row {
  std::string name;
  std::function<Mask(std::int64_t)> mask;
  std::int64_t tokens;
  std::int64_t dim;
  DType dtype;
  std::string arch;
};

void rate(benchmark::State& state, const Row& row, Direction direction) {
  set_thread_count(1);
  PlanOptions options;
  options.kernel = row.arch + ".";
  Attention attention(row.mask(row.tokens), square(row.tokens, 1, row.dim, row.dtype), options);
  report_rate(state, attention, direction);
}

/// Time of B ÷ time of A over interleaved runs.
double ratio(benchmark::State& state, Attention& a, Attention& b, Direction direction) {
  std::vector<double> ratios;
  for (auto _ : state) {
    const double time_a = seconds_of([&] { a.run(direction); });
    const double time_b = seconds_of([&] { b.run(direction); });
    state.SetIterationTime(time_b);
    ratios.push_back(time_b / time_a);
  }
  return median(ratios);
}

/// Speed of a 16-bit dtype ÷ speed of float32.
void against_f32(benchmark::State& state, const Row& row, Direction direction) {
  set_thread_count(1);
  PlanOptions options;
  options.kernel = row.arch + ".";
  Attention half(row.mask(row.tokens), square(row.tokens, 1, row.dim, row.dtype), options);
  options.kernel = (row.arch == "avx512bf16" ? "avx512" : row.arch) + ".";
  Attention single(row.mask(row.tokens), square(row.tokens, 1, row.dim, DType::f32), options);
  state.counters["speedup"] = ratio(state, half, single, direction);
}

/// (time − three copies) ÷ (active share of the tiles × time of the full mask); 1 is proportional.
void proportion(benchmark::State& state, const std::function<Mask(std::int64_t)>& mask, Direction direction) {
  set_thread_count(1);
  constexpr std::int64_t kTokens = 16384;
  Attention full(masks::full(kTokens, kTokens), square(kTokens, 4, 128));
  Attention masked(mask(kTokens), square(kTokens, 4, 128));
  const TileCounts tiles = masked.planned().schedule(direction).counts();
  const double share = static_cast<double>(tiles.active()) / static_cast<double>(tiles.active() + tiles.skip);
  std::vector<double> proportions;
  for (auto _ : state) {
    const double full_time = seconds_of([&] { full.run(direction); });
    const double time = seconds_of([&] { masked.run(direction); });
    state.SetIterationTime(time);
    proportions.push_back(std::max(0.0, time - 3 * full.copy_seconds()) / (share * full_time));
  }
  state.counters["active%"] = 100 * share;
  state.counters["proportion"] = median(proportions);
}

/// Time of the second plan ÷ time of the first, both of 4,096 tokens, float32, d = 128.
struct Cost {
  std::string name;
  MaskOfLength mask, other_mask;
  bool bits = false;  ///< the second plan reads bits, in the tiles that `visit` selects
  Visit visit = Visit::active;
  double dropout = 0;
};

void cost(benchmark::State& state, const Cost& cost, Direction direction) {
  set_thread_count(1);
  constexpr std::int64_t kTokens = 4096;
  Problem problem = square(kTokens, 1, 128);
  Attention plain(cost.mask(kTokens), problem);
  problem.dropout = cost.dropout;
  PlanOptions options;
  options.visit = cost.visit;
  if (cost.bits) options.form = MaskForm::bits;
  Attention other(cost.other_mask(kTokens), problem, options);
  state.counters["cost"] = ratio(state, plain, other, direction);
}

void two_threads(benchmark::State& state, Direction direction) {
  set_thread_count(2);
  Attention attention(masks::causal(8192, 8192), square(8192, 8, 64));
  std::vector<double> speedups;
  for (auto _ : state) {
    set_thread_count(1);
    const double one = seconds_of([&] { attention.run(direction); });
    set_thread_count(2);
    const double two = seconds_of([&] { attention.run(direction); });
    state.SetIterationTime(two);
    speedups.push_back(one / two);
  }
  set_thread_count(1);
  state.counters["speedup"] = median(speedups);
}

void long_window(benchmark::State& state, Direction direction) {
  set_thread_count(1);
  Attention attention(masks::sliding_window(131072, 131072, 1024), square(131072, 1, 64));
  report_rate(state, attention, direction);
  const Plan& planned = attention.planned();
  state.counters["extra MB"] =
      1e-6 * static_cast<double>(planned.workspace_bytes(direction, 1) + planned.mask().memory_bytes() +
                                 planned.schedule(Direction::forward).memory_bytes() +
                                 planned.schedule(Direction::backward).memory_bytes());
}

using Run = std::function<void(benchmark::State&, Direction)>;

void add(const std::string& name, const Run& run, int iterations) {
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    benchmark::RegisterBenchmark((name + "/" + to_string(direction)).c_str(),
                                 [=](benchmark::State& state) {
                                   try {
                                     run(state, direction);
                                   } catch (const Error& error) {
                                     state.SkipWithError(error.what());
                                   }
                                 })
        ->UseManualTime()
        ->Iterations(iterations)
        ->Unit(benchmark::kMillisecond);
  }
}

Mask full_mask(std::int64_t n) { return masks::full(n, n); }
Mask causal_mask(std::int64_t n) { return masks::causal(n, n); }
Mask window_mask(std::int64_t n) { return masks::sliding_window(n, n, 256); }
Mask alpaca_mask(std::int64_t n) { return masks::causal_document(alpaca_documents(n), n); }

Mask documents_of_2048(std::int64_t n) {
  return masks::causal_document(std::vector<std::int64_t>(static_cast<std::size_t>(n / 2048), 2048), n);
}

Mask shared_questions(std::int64_t n) {
  const std::vector<masks::SharedQuestion> documents(static_cast<std::size_t>(n / 2048), {1024, {512, 512}});
  return masks::shared_question(documents, n);
}

void add_rates(const std::string& arch, DType dtype) {
  const std::map<std::string, MaskOfLength> masks_by_name = {
      {"full", full_mask}, {"causal", causal_mask}, {"window", window_mask}, {"alpaca", alpaca_mask}};
  for (const std::int64_t dim : {64, 128}) {
    for (const auto& [name, mask] : masks_by_name) {
      const Row row{name, mask, 4096, dim, dtype, arch};
      add(
          "rate/" + arch + "/" + to_string(dtype) + "/d" + std::to_string(dim) + "/" + name,
          [row](benchmark::State& state, Direction direction) { rate(state, row, direction); },
          name == "alpaca" ? 201 : (name == "window" ? 51 : 9));
    }
  }
}

void add_against_f32(const std::string& arch, DType dtype) {
  for (const std::int64_t dim : {64, 128}) {
    const Row row{"full", full_mask, 4096, dim, dtype, arch};
    add(
        "speedup_over_f32/" + arch + "/" + to_string(dtype) + "/d" + std::to_string(dim),
        [row](benchmark::State& state, Direction direction) { against_f32(state, row, direction); }, 9);
  }
}

void add_proportions() {
  const std::map<std::string, MaskOfLength> masks_by_name = {
      {"causal", causal_mask},
      {"sliding_window", [](std::int64_t n) { return masks::sliding_window(n, n, n / 16); }},
      {"causal_document", documents_of_2048},
      {"shared_question", shared_questions}};
  for (const auto& [name, mask] : masks_by_name)
    add(
        "proportion/" + name,
        [mask = mask](benchmark::State& state, Direction direction) { proportion(state, mask, direction); }, 3);
}

Mask dense_alpaca_mask(std::int64_t n) {
  const Mask documents = alpaca_mask(n);
  return from_dense(documents.shape(), expand(documents));
}

/// Adds benchmarks of the cost of reading a mask in every tile, of dropout, and of giving documents as a dense matrix.
void add_costs() {
  const std::vector<Cost> costs = {{"bits_in_every_tile", full_mask, full_mask, true, Visit::all},
                                   {"dropout", full_mask, full_mask, false, Visit::active, 0.1},
                                   {"dense_documents", alpaca_mask, dense_alpaca_mask},
                                   {"documents_as_bits", alpaca_mask, alpaca_mask, true}};
  for (const Cost& one : costs)
    add(
        "cost/" + one.name, [one](benchmark::State& state, Direction direction) { cost(state, one, direction); },
        one.name.find("documents") == std::string::npos ? 9 : 51);
}

}  // namespace

int main(int argc, char** argv) {
  for (const std::string arch : {"avx512", "avx2"}) add_rates(arch, DType::f32);
  add_rates("avx512bf16", DType::bf16);
  add_against_f32("avx512bf16", DType::bf16);
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const std::string arch : {"avx512", "avx2"}) add_against_f32(arch, dtype);
  add_proportions();
  add_costs();
  add("two_threads/causal", two_threads, 5);
  add("long_window", long_window, 3);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
