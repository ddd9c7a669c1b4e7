#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "check/host_tensor.h"
#include "flashmask/attention.h"
#include "flashmask/error.h"
#include "flashmask/explain.h"
#include "flashmask/kernels.h"
#include "mask_arguments.h"
#include "names.h"
#include "problem_options.h"
#include "progress_bar.h"
#include "quantities.h"
#include "subcommands.h"
#include "table.h"
#include "timing.h"

namespace flashmask::cli {
namespace {

struct BenchOptions {
  ProblemOptions problem;
  std::vector<std::string> families = {"full", "causal", "sliding_window", "causal_document", "shared_question"};
  std::string kernel;
  std::string direction;
  bool json = false;
};

/// One line of the result.
struct Timing {
  std::string kernel, mask, direction;
  double seconds = 0;
  double gflops = 0;  ///< on visible pairs, per second
};

/// Two products of head_dim and value_dim a visible pair; the backward counts 2.5 times as much.
double flops(const Problem& problem, const Mask& mask, Direction direction) {
  const auto pairs = static_cast<double>(explain(mask).visible_pairs * problem.batch * problem.query_heads);
  const double forward = 2.0 * static_cast<double>(problem.head_dim + problem.value_dim) * pairs;
  return direction == Direction::forward ? forward : 2.5 * forward;
}

std::vector<KernelInfo> kernels_to_time(const BenchOptions& options, const Problem& problem) {
  std::vector<KernelInfo> chosen;
  for (const KernelInfo& kernel : kernels()) {
    const bool named = kernel.name.compare(0, options.kernel.size(), options.kernel) == 0;
    const bool asked = options.direction.empty() || to_string(kernel.direction) == options.direction;
    if (named && asked && why_not(kernel, problem, kernel.predicate).empty()) chosen.push_back(kernel);
  }
  if (!chosen.empty()) return chosen;
  throw Error(Status::unsupported, "bench: no kernel of this machine " +
                                       (options.kernel.empty() ? "" : "begins with \"" + options.kernel + "\" and ") +
                                       "serves " + options.problem.dtype + "; see flashmask info");
}

Timing time_kernel(const KernelInfo& kernel, const Mask& mask, const std::string& family, const Problem& problem,
                   const check::AttentionTensors& tensors) {
  const Plan planned = plan(mask, problem, {.visit = Visit::active, .kernel = kernel.name});
  const bool is_forward = kernel.direction == Direction::forward;
  if (!is_forward) forward(planned, tensors.forward());  // the backward reads o and lse
  BackwardTensors gradients = tensors.backward();
  gradients.grad_lse = {};
  const double seconds =
      median_seconds([&] { is_forward ? forward(planned, tensors.forward()) : backward(planned, gradients); });
  return {kernel.name, family, to_string(kernel.direction), seconds,
          flops(problem, mask, kernel.direction) / seconds * 1e-9};
}

std::vector<Mask> build_masks(const BenchOptions& options) {
  MaskArguments size;
  size.tokens = options.problem.seqlen;
  std::vector<Mask> masks;
  for (const std::string& family : options.families) masks.push_back(build_mask(family, size));
  return masks;
}

std::vector<Timing> time_all(const BenchOptions& options, const Problem& problem, Console& console) {
  const std::vector<Mask> masks = build_masks(options);
  const std::vector<KernelInfo> kernels = kernels_to_time(options, problem);
  const check::AttentionTensors tensors(problem, options.problem.seed);
  ProgressBar progress(console, std::ssize(masks) * std::ssize(kernels));
  std::vector<Timing> timings;
  for (const KernelInfo& kernel : kernels) {
    for (std::size_t i = 0; i < masks.size(); ++i) {
      progress.begin(kernel.name + ", " + options.families[i]);
      timings.push_back(time_kernel(kernel, masks[i], options.families[i], problem, tensors));
    }
  }
  return timings;
}

std::string text_of(const std::vector<Timing>& timings) {
  using enum Table::Align;
  Table table({left, left, right, right});
  table.add({"kernel", "mask", "time", "GF/s"});
  for (const Timing& t : timings) table.add({t.kernel, t.mask, seconds(t.seconds), significant(t.gflops)});
  return table.text();
}

nlohmann::ordered_json json_of(const BenchOptions& options, const Problem& problem,
                               const std::vector<Timing>& timings) {
  auto results = nlohmann::ordered_json::array();
  for (const Timing& t : timings) {
    results.push_back({{"kernel", t.kernel},
                       {"mask", t.mask},
                       {"direction", t.direction},
                       {"seconds", t.seconds},
                       {"gflops", t.gflops}});
  }
  return {{"batch", problem.batch},
          {"seqlen", problem.query_length},
          {"heads", problem.query_heads},
          {"kv_heads", problem.kv_heads},
          {"head_dim", problem.head_dim},
          {"dtype", options.problem.dtype},
          {"threads", default_executor().workers()},
          {"results", results}};
}

void bench(const BenchOptions& options, Console& console) {
  const Problem problem = apply(options.problem);
  const std::vector<Timing> timings = time_all(options, problem, console);
  console.out << (options.json ? json_of(options, problem, timings).dump(2) + "\n" : text_of(timings));
}

}  // namespace

void add_bench(CLI::App& app, Console& console, int&) {
  CLI::App* sub = app.add_subcommand("bench", "Time kernels on masks");
  const auto options = std::make_shared<BenchOptions>();
  options->problem.seqlen = 2048;
  options->problem.heads = 2;
  add_problem_options(*sub, options->problem);
  sub->add_option("--mask", options->families, "Mask families [" + join(options->families, " ") + "]")->delimiter(',');
  sub->add_option("--kernel", options->kernel, "Only kernels whose name begins so");
  sub->add_option("--direction", options->direction, "forward or backward [both]")
      ->check(CLI::IsMember({"forward", "backward"}));
  sub->add_flag("--json", options->json, "Print JSON");
  sub->callback([options, &console] { bench(*options, console); });
}

}  // namespace flashmask::cli
