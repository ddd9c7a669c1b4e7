// SPDX-License-Identifier: Apache-2.0
/// Linear attention of one head and one document of 8,192 tokens on one thread, forward and backward, beside causal
/// attention of the same sizes. Times are of the thread, so that other programs on a shared machine count less; `peak`
/// is the share of the multiply-add rate that the same kernel's instructions reach on registers alone, measured before.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "flashmask/builders.h"
#include "flashmask/kernels.h"
#include "flashmask/linear_attention.h"
#include "kit/host_tensor.h"
#include "kit/linear_tensors.h"

namespace {

using namespace flashmask;

constexpr std::int64_t kTokens = 8192;
constexpr double kStep = 64;

struct Dims {
  std::int64_t key, value;
  bool normalize;
};

/// The operations that a token takes: products with states, and the triangles of a step in blocks of about 8 rows. The
/// backward makes the states twice, but for the last ones of nodes and stretches.
double forward_flop(const Dims& d) {
  const auto key = static_cast<double>(d.key), value = static_cast<double>(d.value);
  return 4 * key * value + (kStep + 8) * (key + value);
}
double backward_flop(const Dims& d) {
  const auto key = static_cast<double>(d.key), value = static_cast<double>(d.value);
  return (8 + 2 * 7 / 8.0 + 2 * 15 / 16.0) * key * value + (kStep + 8) * (3 * key + 2 * value);
}

double peak_of(const std::string& arch) {
  double peak = 0;
  for (const KernelInfo& kernel : kernels())
    if (kernel.arch == arch && kernel.dtype == DType::f32)
      for (int turn = 0; turn < 10; ++turn) peak = std::max(peak, measure_peak(kernel));
  return peak;
}

void count(benchmark::State& state, double flop, const std::string& arch) {
  const double tokens = static_cast<double>(state.iterations()) * kTokens;
  state.counters["tokens/s"] = benchmark::Counter(tokens, benchmark::Counter::kIsRate);
  state.counters["flop/s"] = benchmark::Counter(tokens * flop, benchmark::Counter::kIsRate);
  state.counters["peak"] = benchmark::Counter(tokens * flop / peak_of(arch), benchmark::Counter::kIsRate);
}

void linear(benchmark::State& state, const std::string& kernel, const Dims& dims, bool backward) {
  LinearProblem p;
  p.length = kTokens;
  p.key_dim = dims.key, p.value_dim = dims.value, p.normalize = dims.normalize;
  const LinearPlan plan = linear_plan(masks::causal(kTokens, kTokens), p, kernel);
  const check::LinearTensors tensors(plan, 1);
  Execution alone;
  alone.executor = &serial_executor();
  linear_forward(plan, tensors.forward(), alone);
  for (auto _ : state) {
    if (backward)
      linear_backward(plan, tensors.backward(), alone);
    else
      linear_forward(plan, tensors.forward(), alone);
  }
  count(state, backward ? backward_flop(dims) : forward_flop(dims), kernel.substr(0, kernel.find('.')));
}

void softmax(benchmark::State& state, bool both) {
  Problem p;
  p.query_length = p.key_length = kTokens;
  p.head_dim = p.value_dim = 128;
  const Plan planned = plan(masks::causal(kTokens, kTokens), p);
  const check::AttentionTensors tensors(p, 1);
  Execution alone;
  alone.executor = &serial_executor();
  for (auto _ : state) {
    forward(planned, tensors.forward(), alone);
    if (both) backward(planned, tensors.backward(), alone);
  }
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * kTokens, benchmark::Counter::kIsRate);
}

int register_all() {
  for (const LinearKernelInfo& info : linear_kernels()) {
    const std::string& kernel = info.name;
    if (info.device != DeviceType::cpu || info.dtype != DType::f32 || info.arch == "scalar") continue;
    if (!why_not_linear(kernel).empty()) continue;
    for (const Dims& d : {Dims{64, 64, false}, {128, 128, false}, {128, 128, true}, {128, 64, false}, {256, 512, true}})
      for (const bool backward : {false, true}) {
        const std::string name = kernel + "/" + std::to_string(d.key) + "x" + std::to_string(d.value) +
                                 (d.normalize ? "/normalized" : "") + (backward ? "/backward" : "/forward");
        benchmark::RegisterBenchmark(name.c_str(), linear, kernel, d, backward)->Unit(benchmark::kMillisecond);
      }
  }
  benchmark::RegisterBenchmark("causal_attention/128x128/forward", softmax, false)->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("causal_attention/128x128/both", softmax, true)->Unit(benchmark::kMillisecond);
  return 0;
}

const int registered = register_all();

}  // namespace
