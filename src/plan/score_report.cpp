// SPDX-License-Identifier: Apache-2.0
#include "flashmask/score_report.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <utility>

#include "base/checks.h"
#include "flashmask/error.h"
#include "plan/registry.h"

namespace flashmask {
namespace {

/// Shared memory of the GPUs that there are kernels for, in KB: of a block and of a multiprocessor.
struct SharedMemory {
  int architecture, block, all;
};
constexpr SharedMemory kSharedMemory[] = {{80, 163, 164},  {86, 99, 100},  {87, 163, 164},
                                          {89, 99, 100},   {90, 227, 228}, {100, 227, 228},
                                          {103, 227, 228}, {120, 99, 100}, {121, 99, 100}};

GpuKind kind_of(const std::string& architecture) {
  if (architecture.empty()) return first_gpu();
  std::string known;
  for (const auto& [number, block, all] : kSharedMemory) {
    const std::string name = "sm_" + std::to_string(number);
    if (name == architecture)
      return {name, {number / 10, number % 10}, std::size_t(block) << 10, std::size_t(all) << 10};
    known += (known.empty() ? "" : ", ") + name;
  }
  refuse("score: architecture is \"" + architecture + "\"; expected one of " + known);
}

/// All steps behind the factor as one function, in which ALiBi is a bias.
ScoreFunction function_of(const ScoreChange& change) {
  ScoreChange all;
  for (const ScoreStep& step : change.steps())
    all = all | (step.bias == ScoreBias::alibi ? scores::bias() : ScoreChange(step));
  const ScoreChange made = all | scores::function("score");
  return *made.function();
}

std::vector<std::string> dependence(const ScoreFunction& function, const ScoreChange& change) {
  constexpr std::array<std::pair<ScoreOp, const char*>, 4> kPlaces = {
      {{ScoreOp::b, "b"}, {ScoreOp::h, "h"}, {ScoreOp::q, "q"}, {ScoreOp::k, "k"}}};
  std::vector<std::string> found{"score"};
  for (const auto& [op, name] : kPlaces)
    if (function.uses(op)) found.emplace_back(name);
  for (int i = 0; i < function.operands(); ++i)
    found.push_back("operand " + std::to_string(i) + " at " +
                    (function.rank(i) == 1 ? "1 index" : std::to_string(function.rank(i)) + " indices"));
  constexpr const char* kBiases[] = {"", "slopes and distances of tokens", "a bias of each score",
                                     "a table by distance"};
  if (change.bias() != ScoreBias::none) found.emplace_back(kBiases[static_cast<int>(change.bias())]);
  return found;
}

Problem problem_of(const ScoreChange& change, std::int64_t head_dim, DType dtype, DeviceType device) {
  constexpr std::int64_t kTokens = 1024;
  Problem problem;
  problem.batch = problem.query_heads = problem.kv_heads = 1;
  problem.query_length = problem.key_length = kTokens;
  problem.head_dim = problem.value_dim = head_dim;
  problem.dtype = dtype;
  problem.device.type = device;
  problem.change = change;
  return problem;
}

std::string how(const ScoreChange& change, const Kernel& kernel, const std::vector<KernelCode>& code) {
  if (change.text().empty()) return "scores stay as they are";
  if (!code.empty()) return "compiled for the change";
  if (kernel.info().device == DeviceType::cuda || change.function() == nullptr) return "a part of the kernel";
  return "one operation after another";
}

/// Fills in the kernels of a device; `kind`: of a GPU, nullptr: the CPU.
void add_kernels(ScoreReport& report, const Problem& problem, const GpuKind* kind, bool tries_to_compile = false) {
  std::vector<const Kernel*> found;
  bool compiles = false;
  const std::string any_name, device = kind == nullptr ? "cpu" : kind->architecture;
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    const KernelRequest request{direction, problem, MaskForm::intervals, any_name};
    const Kernel* const kernel = kind == nullptr ? find_kernel(request) : find_kernel(request, *kind);
    if (kernel == nullptr) {
      report.kernels.push_back({device, direction, "", "no kernel of this build serves it there"});
      continue;
    }
    const std::vector<KernelCode> code =
        kind == nullptr ? std::vector<KernelCode>() : kernel->compiled_code(problem, kind->block_shared_bytes);
    compiles |= !code.empty();
    found.push_back(kernel);
    report.kernels.push_back({device, direction, kernel->info().name, how(problem.change, *kernel, code)});
  }
  if (!compiles || !tries_to_compile) return;
  try {
    report.compiled = try_to_compile(found, problem, *kind);
  } catch (const Error& error) {
    report.not_compiled = error.what();
  }
}

std::string joined(const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) all += (all.empty() ? "" : ", ") + part;
  return all;
}

}  // namespace

ScoreChange read_score(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  const std::string_view first =
      text.substr(begin, std::min(text.find_first_of(" \t\r\n(|", begin), text.size()) - begin);
  return ScoreChange::is_step(first) ? ScoreChange::parse(text) : scores::function(text);
}

ScoreReport report(const ScoreChange& change, const ScoreReportOptions& options) {
  const ScoreFunction function = function_of(change);
  ScoreReport made;
  made.text = change.text();
  const std::string factor = change.factor() == 1 ? "" : shortest(change.factor()) + " times ";
  made.slope = factor + function.text(function.slope());
  if (function.bias_slope() >= 0 && change.bias() != ScoreBias::alibi)
    made.bias_slope = function.text(function.bias_slope());
  made.depends = dependence(function, change);
  made.by_distance = function.is_by_distance();
  add_kernels(made, problem_of(change, options.head_dim, DType::f32, DeviceType::cpu), nullptr);
  const GpuKind kind = kind_of(options.architecture);
  const Problem on_gpu = problem_of(change, options.head_dim, options.dtype, DeviceType::cuda);
  if (!kind.architecture.empty()) add_kernels(made, on_gpu, &kind, options.compiles);
  return made;
}

std::string to_string(const ScoreReport& report) {
  std::vector<std::pair<std::string, std::string>> lines{
      {"text", report.text.empty() ? "(scores stay as they are)" : report.text},
      {"slope", report.slope},
      {"depends on", joined(report.depends) + (report.by_distance ? "; q and k by q - k alone, if at all" : "")}};
  if (!report.bias_slope.empty()) lines.insert(lines.begin() + 2, {"by the bias", report.bias_slope});
  for (const ScoreReport::Kernel& kernel : report.kernels)
    lines.emplace_back(kernel.device + " " + to_string(kernel.direction),
                       (kernel.name.empty() ? "" : kernel.name + ": ") + kernel.how);
  for (const CompiledKernel& kernel : report.compiled) {
    char seconds[32];
    std::snprintf(seconds, sizeof(seconds), "%.2f", kernel.seconds);
    lines.emplace_back("compiled", kernel.name + " in " + seconds + " s, " + std::to_string(kernel.spilled) +
                                       " bytes spilled, by " + kernel.compiler);
  }
  if (!report.not_compiled.empty()) lines.emplace_back("not compiled", report.not_compiled);
  std::size_t width = 0;
  for (const auto& [name, value] : lines) width = std::max(width, name.size());
  std::string table;
  for (const auto& [name, value] : lines) table += name + std::string(width + 2 - name.size(), ' ') + value + "\n";
  return table;
}

}  // namespace flashmask
