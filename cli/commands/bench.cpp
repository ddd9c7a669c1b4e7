// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/base/device_timing.h"
#include "cli/base/names.h"
#include "cli/base/progress_bar.h"
#include "cli/base/quantities.h"
#include "cli/base/table.h"
#include "cli/base/timing.h"
#include "cli/commands/bench_linear.h"
#include "cli/commands/dropout_options.h"
#include "cli/commands/problem_options.h"
#include "cli/commands/reordering.h"
#include "cli/commands/subcommands.h"
#include "cli/masks/mask_arguments.h"
#include "cli/masks/mask_input.h"
#include "flashmask/attention.h"
#include "flashmask/error.h"
#include "flashmask/explain.h"
#include "flashmask/kernels.h"
#include "kit/host_tensor.h"
#include "kit/placed_attention.h"

namespace flashmask::cli {
namespace {

struct BenchOptions {
  ProblemOptions problem;
  std::vector<std::string> masks;
  MaskInput input;
  DropoutOptions dropout;
  bool reorder = false;
  std::string kernel;
  std::string direction;
  bool linear = false, normalize = false;
  bool json = false;
};

const std::vector<std::string> kUsualMasks = {"full", "causal", "sliding_window", "causal_document", "shared_question"};
const std::vector<std::string> kUsualTrees = {"causal", "causal_document", "shared_question"};  ///< for --linear

/// One line of the result.
struct Timing {
  std::string kernel, mask, direction;
  double seconds = 0;
  double gflops = 0;                        ///< on visible pairs, per second
  std::optional<double> sustained_seconds;  ///< on a GPU, where `seconds` is one cold launch
  std::optional<ReorderReport> reordering;
};

/// Two products, over head_dim and over value_dim, per visible pair; the backward counts 2.5 times as much.
double flops(const Problem& problem, const Mask& mask, Direction direction) {
  const MaskShape& shape = mask.shape();
  const std::int64_t heads = problem.batch / shape.batch * (problem.query_heads / shape.heads);
  const auto pairs = static_cast<double>(explain(mask).visible_pairs) * static_cast<double>(heads);
  const double forward = 2.0 * static_cast<double>(problem.head_dim + problem.value_dim) * pairs;
  return direction == Direction::forward ? forward : 2.5 * forward;
}

/// The form to time a mask in: its own or, with reordering, one that both it and the reordered mask fit.
MaskForm form_of(const Mask& mask, bool reordered) {
  const MaskForm form = mask.lowered().form();
  return reordered && form == MaskForm::intervals ? reorder(mask).mask.lowered().form() : form;
}

/// A kernel and the mask that it is timed on.
struct Run {
  KernelInfo kernel;
  const NamedMask* mask;
};

/// Pairs every kernel with the masks of the form that it reads.
std::vector<Run> runs_of(const BenchOptions& options, const Problem& problem, const std::vector<NamedMask>& masks) {
  std::vector<Run> runs;
  std::vector<MaskForm> forms;
  forms.reserve(masks.size());
  for (const NamedMask& mask : masks) forms.push_back(form_of(mask.mask, options.reorder));
  for (const KernelInfo& kernel : kernels()) {
    const bool named = kernel.name.compare(0, options.kernel.size(), options.kernel) == 0;
    const bool asked = options.direction.empty() || to_string(kernel.direction) == options.direction;
    if (!named || !asked || !why_not(kernel, problem, kernel.predicate).empty()) continue;
    for (std::size_t i = 0; i < masks.size(); ++i) {
      if (kernel.predicate == forms[i]) runs.push_back({kernel, &masks[i]});
    }
  }
  if (!runs.empty()) return runs;
  throw Error(Status::unsupported, "bench: no kernel of this machine " +
                                       (options.kernel.empty() ? "" : "begins with \"" + options.kernel + "\" and ") +
                                       "serves " + options.problem.dtype +
                                       " and the form of a mask; see flashmask info, or give --form");
}

void take_times(Device device, const std::function<void()>& work, Timing& timing) {
  if (device.type == DeviceType::cpu) {
    timing.seconds = median_seconds(work);
    return;
  }
  const DeviceTimes times = time_on_device(work);
  timing.seconds = times.burst;
  timing.sustained_seconds = times.sustained;
}

Timing time_run(const Run& run, const BenchOptions& options, const Problem& problem,
                const check::PlacedTensors& tensors) {
  const KernelInfo& kernel = run.kernel;
  const Mask& mask = run.mask->mask;
  check::PlacedPlan placed(mask, problem,
                           {.form = kernel.predicate, .kernel = kernel.name, .reorder = options.reorder});
  const Execution execution{.dropout = options.dropout.state(options.problem.seed)};
  const bool is_forward = kernel.direction == Direction::forward;
  if (!is_forward) placed.forward(tensors.forward(), execution);  // the backward reads o and lse
  BackwardTensors gradients = tensors.backward();
  gradients.grad_lse = {};
  const auto work = [&] {
    is_forward ? placed.forward(tensors.forward(), execution) : placed.backward(gradients, execution);
  };
  Timing timing{kernel.name, run.mask->name, to_string(kernel.direction), 0, 0, {}, {}};
  take_times(problem.device, work, timing);
  timing.gflops = flops(problem, mask, kernel.direction) / timing.seconds * 1e-9;
  const Reordering* reordering = placed.plan().reordering();
  if (reordering != nullptr) timing.reordering = report_of(*reordering);
  return timing;
}

Mask build_usual(const BenchOptions& options, const std::string& family, std::optional<std::int64_t> rows) {
  MaskArguments size;
  size.tokens = rows.value_or(options.problem.usual_seqlen);
  return build_mask(family, size);
}

void check_same_size(const std::vector<NamedMask>& masks) {
  const MaskShape& first = masks.front().mask.shape();
  for (const auto& [name, mask] : masks) {
    if (mask.shape().rows == first.rows && mask.shape().columns == first.columns) continue;
    const auto size = [](const MaskShape& s) { return std::to_string(s.rows) + " x " + std::to_string(s.columns); };
    throw Error(Status::invalid_argument, "bench: " + masks.front().name + " has " + size(first) + " scores and " +
                                              name + " " + size(mask.shape()) + "; give masks of one size");
  }
}

std::vector<NamedMask> masks_of(const BenchOptions& options) {
  const bool usual = options.masks.empty() && !options.input.png;
  std::vector<NamedMask> masks = read_masks(
      !usual           ? options.masks
      : options.linear ? kUsualTrees
                       : kUsualMasks,
      options.input, options.problem.seqlen,
      [&](const std::string& name, std::optional<std::int64_t> rows) { return build_usual(options, name, rows); });
  check_same_size(masks);
  check_seqlen(options.problem, masks.front().mask.shape(), masks.front().name);
  for (NamedMask& one : masks) one.mask = in_form(in_blocks(one.mask, options.input), options.input);
  return masks;
}

/// The first mask's shape with the largest batch of all masks.
MaskShape common_shape(const std::vector<NamedMask>& masks) {
  MaskShape shape = masks.front().mask.shape();
  for (const NamedMask& one : masks) shape.batch = std::max(shape.batch, one.mask.shape().batch);
  return shape;
}

std::vector<Timing> time_all(const BenchOptions& options, const Problem& problem, const std::vector<NamedMask>& masks,
                             Console& console) {
  const std::vector<Run> runs = runs_of(options, problem, masks);
  const check::AttentionTensors host(problem, options.problem.seed);
  const check::PlacedTensors tensors(host, problem.device);
  ProgressBar progress(console, std::ssize(runs));
  std::vector<Timing> timings;
  for (const Run& run : runs) {
    progress.begin(run.kernel.name + ", " + run.mask->name);
    timings.push_back(time_run(run, options, problem, tensors));
  }
  return timings;
}

/// Key heads of linear attention are what --kv-heads says.
LinearProblem linear_problem(const Problem& problem, bool normalize) {
  return {.batch = problem.batch,
          .length = problem.query_length,
          .heads = problem.query_heads,
          .key_heads = problem.kv_heads,
          .key_dim = problem.head_dim,
          .value_dim = problem.value_dim,
          .dtype = problem.dtype,
          .device = problem.device,
          .normalize = normalize};
}

std::vector<Timing> time_all_linear(const BenchOptions& options, const Problem& problem,
                                    const std::vector<NamedMask>& masks, Console& console) {
  if (options.reorder || options.dropout.given())
    throw Error(Status::invalid_argument, "bench: --linear and --reorder or --dropout; linear attention has neither");
  const LinearProblem linear = linear_problem(problem, options.normalize);
  const std::vector<LinearRun> runs = linear_runs(linear, masks, options.kernel, options.direction);
  ProgressBar progress(console, std::ssize(runs));
  std::vector<Timing> timings;
  for (const LinearRun& run : runs) {
    progress.begin(run.kernel + ", " + run.mask->name);
    Timing timing{run.kernel, run.mask->name, run.is_forward ? "forward" : "backward", 0, 0, {}, {}};
    time_linear(run, linear, options.problem.seed,
                [&](const std::function<void()>& work) { take_times(problem.device, work, timing); });
    timing.gflops = linear_flops(linear, run.is_forward) / timing.seconds * 1e-9;
    timing.kernel += ", " + timing.direction;
    timings.push_back(timing);
  }
  return timings;
}

std::string reordering_cell(const Timing& timing) {
  const ReorderReport& report = *timing.reordering;
  if (!report.taken) return "not taken: " + with_commas(report.tiles_before) + " active tiles";
  return with_commas(report.tiles_before) + " → " + with_commas(report.tiles_after) + " active tiles";
}

std::string text_of(const BenchOptions& options, const std::vector<Timing>& timings) {
  using enum Table::Align;
  Table table({left, left, right, right, left});
  table.add({"kernel", "mask", "time", "GF/s", options.reorder ? "reordering" : ""});
  for (const Timing& t : timings) {
    table.add({t.kernel, t.mask, seconds(t.seconds), significant(t.gflops), t.reordering ? reordering_cell(t) : ""});
  }
  return table.text();
}

/// The table for a GPU, with both regimes.
std::string device_text_of(const BenchOptions& options, const std::vector<Timing>& timings) {
  using enum Table::Align;
  Table table({left, left, right, right, right, right, left});
  table.add({"kernel", "mask", "burst", "TF/s", "sustained", "TF/s", options.reorder ? "reordering" : ""});
  for (const Timing& t : timings) {
    table.add({t.kernel, t.mask, seconds(t.seconds), significant(1e-3 * t.gflops), seconds(*t.sustained_seconds),
               significant(1e-3 * t.gflops * t.seconds / *t.sustained_seconds),
               t.reordering ? reordering_cell(t) : ""});
  }
  return table.text();
}

nlohmann::ordered_json json_of(const Timing& t) {
  nlohmann::ordered_json json = {
      {"kernel", t.kernel}, {"mask", t.mask}, {"direction", t.direction}, {"seconds", t.seconds}, {"gflops", t.gflops}};
  if (t.sustained_seconds) json["sustained_seconds"] = *t.sustained_seconds;
  if (t.reordering) json["reordering"] = to_json(*t.reordering);
  return json;
}

nlohmann::ordered_json json_of(const BenchOptions& options, const Problem& problem,
                               const std::vector<Timing>& timings) {
  auto results = nlohmann::ordered_json::array();
  for (const Timing& t : timings) results.push_back(json_of(t));
  nlohmann::ordered_json json = {{"batch", problem.batch},
                                 {"seqlen", problem.query_length},
                                 {"heads", problem.query_heads},
                                 {"kv_heads", problem.kv_heads},
                                 {"head_dim", problem.head_dim},
                                 {"dtype", options.problem.dtype},
                                 {"device", to_string(problem.device)},
                                 {"threads", default_executor().workers()}};
  if (options.dropout.given()) {
    json["dropout"] = to_json(options.dropout.probability, options.dropout.state(options.problem.seed));
  }
  json["results"] = std::move(results);
  return json;
}

std::string dropout_line(const BenchOptions& options) {
  if (!options.dropout.given()) return "";
  return "\ndropout " + to_text(options.dropout.probability, options.dropout.state(options.problem.seed)) + "\n";
}

void bench(const BenchOptions& options, Console& console) {
  const std::vector<NamedMask> masks = masks_of(options);
  Problem problem = apply(options.problem, common_shape(masks));
  problem.dropout = options.dropout.probability;
  const std::vector<Timing> timings =
      options.linear ? time_all_linear(options, problem, masks, console) : time_all(options, problem, masks, console);
  const std::string text =
      problem.device.type == DeviceType::cpu ? text_of(options, timings) : device_text_of(options, timings);
  console.out << (options.json ? json_of(options, problem, timings).dump(2) + "\n" : text + dropout_line(options));
}

}  // namespace

void add_bench(CLI::App& command, Console& console, int&) {
  Subcommand sub(command, "bench", "Time kernels on masks");
  const auto options = std::make_shared<BenchOptions>();
  options->problem.usual_seqlen = 2048;
  options->problem.heads = 2;
  add_problem_options(sub, options->problem);
  sub.list("--mask", options->masks, "Families and FILE.npy [" + join(kUsualMasks, " ") + "]");
  add_mask_input_options(sub, options->input);
  add_form_option(sub, options->input);
  add_dropout_options(sub, options->dropout);
  sub.flag("--reorder", options->reorder, "Reorder tokens where that saves tiles");
  sub.option("--kernel", options->kernel, "Only kernels whose name begins so");
  sub.option("--direction", options->direction, "forward or backward [both]").one_of({"forward", "backward"});
  sub.flag("--linear", options->linear,
           "Time linear attention instead, on masks that are trees [" + join(kUsualTrees, " ") + "]");
  sub.flag("--normalize", options->normalize, "With --linear: divide as mLSTM does");
  sub.flag("--json", options->json, "Print JSON");
  sub.on_run([options, &console] { bench(*options, console); });
}

}  // namespace flashmask::cli
