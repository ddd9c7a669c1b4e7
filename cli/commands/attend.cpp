// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>

#include "cli/base/device_option.h"
#include "cli/base/device_timing.h"
#include "cli/base/progress_bar.h"
#include "cli/base/timing.h"
#include "cli/commands/attend_report.h"
#include "cli/commands/dropout_options.h"
#include "cli/commands/problem_options.h"
#include "cli/commands/reordering.h"
#include "cli/commands/sampled_check.h"
#include "cli/commands/subcommands.h"
#include "cli/files/output_file.h"
#include "cli/masks/mask_arguments.h"
#include "cli/masks/mask_input.h"
#include "cli/pictures/mask_picture.h"
#include "flashmask/attention.h"
#include "flashmask/block_map.h"
#include "flashmask/error.h"
#include "kit/host_tensor.h"
#include "kit/placed_attention.h"

namespace flashmask::cli {
namespace {

constexpr const char* kUsualMask = "causal_document";

struct AttendOptions {
  std::string mask;                      ///< a family or a file; empty: that of --mask-png, or kUsualMask
  std::optional<std::string> documents;  ///< of the family, such as "4,3,3"
  MaskInput input;
  ProblemOptions problem;
  DropoutOptions dropout;
  std::string png;
  bool dense = true, reorder = false, json = false;

  Execution execution() const { return {.dropout = dropout.state(problem.seed)}; }
};

void run_backward(check::PlacedPlan& placed, const check::PlacedTensors& tensors, const Execution& execution) {
  BackwardTensors gradients = tensors.backward();
  gradients.grad_lse = {};
  placed.backward(gradients, execution);
}

/// Both directions may share one schedule. On a GPU, the plan's bytes include the mask.
std::size_t schedule_bytes(const check::PlacedPlan& placed) {
  if (placed.device_bytes() > 0) return placed.device_bytes();
  const Plan& planned = placed.plan();
  const TileSchedule& rows = planned.schedule(Direction::forward);
  const TileSchedule& columns = planned.schedule(Direction::backward);
  return rows.memory_bytes() + (&rows == &columns ? 0 : columns.memory_bytes());
}

/// The mask to attend under, before block map and form.
Mask given_mask(const AttendOptions& options) {
  const std::string named = options.mask.empty() && !options.input.png ? kUsualMask : options.mask;
  const NamedMask one = *read_mask(named, options.input, [&] {
    MaskArguments given;
    given.documents = options.documents;
    given.tokens = options.problem.seqlen;
    if (!given.tokens && !given.documents) given.tokens = options.problem.usual_seqlen;
    return build_mask(named, given);
  });
  if (options.documents && (named.empty() || is_mask_file(named)))
    throw Error(Status::invalid_argument, "attend: --documents means nothing to " + one.name);
  check_seqlen(options.problem, one.mask.shape(), one.name);
  return one.mask;
}

/// The scores of a mask, for query heads.
VisibleScore scores_of(const Mask& mask, const Problem& problem) {
  const MaskShape& shape = mask.shape();
  const bool shared = shape.batch == 1;
  const std::int64_t heads = problem.query_heads / shape.heads;
  return [=](std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) {
    return mask.visible(shared ? 0 : batch, head / heads, row, column);
  };
}

/// The scores of a mask within the block map. Read from the mask as it was given, whose form the kernels may not use.
VisibleScore scores_of(const AttendOptions& options, const Mask& mask, const Problem& problem) {
  const VisibleScore scores = scores_of(mask, problem);
  const std::optional<BlockMap> map = read_map(options.input, problem.query_length, problem.key_length);
  if (!map) return scores;
  const std::int64_t heads = problem.query_heads / map->shape().heads;
  return [=](std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) {
    const bool kept =
        map->keeps(map->shape().batch == 1 ? 0 : batch, head / heads, row / map->block(), column / map->block());
    return kept && scores(batch, head, row, column);
  };
}

/// The mask in the token order that the plan uses. A plan on a GPU keeps no mask on the host.
Mask seen_by_kernels(const Plan& planned, const Mask& mask) {
  if (planned.problem().device.type == DeviceType::cpu) return {planned.mask(), mask.description()};
  const Reordering* reordering = planned.reordering();
  return reordering == nullptr ? mask : Mask(reordering->mask.lowered(), mask.description());
}

/// Fills in the part of the report that the plan knows.
AttendReport describe(const AttendOptions& options, const check::PlacedPlan& placed, const Mask& mask) {
  const Plan& planned = placed.plan();
  AttendReport report;
  report.problem = planned.problem();
  if (options.dropout.given()) report.dropout = options.dropout.state(options.problem.seed);
  report.device = description_of(planned.problem().device) + ", " + planned.kernel(Direction::forward).arch;
  report.forward_kernel = planned.kernel(Direction::forward).name;
  report.backward_kernel = planned.kernel(Direction::backward).name;
  if (planned.reordering() != nullptr) report.reordering = report_of(*planned.reordering());
  report.mask = explain(seen_by_kernels(planned, mask), planned.kernel(Direction::forward).tile);
  report.mask.schedule_bytes = schedule_bytes(placed);
  return report;
}

/// Roughly how many times longer the dense runs take: all scores over those of the active tiles.
double dense_factor(const Explanation& mask) { return 1 / std::max(mask.waste * mask.density, 1e-6); }

/// Seconds of one cold launch on a GPU; on a CPU the median of several calls, or one call that takes long anyway.
double seconds_on(Device device, bool takes_long, const std::function<void()>& work) {
  if (device.type == DeviceType::cuda) return cold_seconds(work);
  return takes_long ? seconds_of(work) : median_seconds(work);
}

/// Dense runs take long: they are measured once, after the other runs have warmed everything up.
Times time_dense(const AttendReport& report, const Mask& mask, const check::PlacedTensors& tensors,
                 const Execution& execution, ProgressBar& progress) {
  const Device device = report.problem.device;
  check::PlacedPlan dense(mask, report.problem, {.visit = Visit::all});
  Times times;
  progress.begin("dense mask, forward", 25, report.times.forward * dense_factor(report.mask));
  times.forward = seconds_on(device, true, [&] { dense.forward(tensors.forward(), execution); });
  progress.begin("dense mask, backward", 55, report.times.backward * dense_factor(report.mask));
  times.backward = seconds_on(device, true, [&] { run_backward(dense, tensors, execution); });
  return times;
}

/// Seconds to make a plan; on a GPU, the second one, since the first waits for the driver.
double time_plan(const Mask& mask, const Problem& problem, const PlanOptions& options,
                 std::optional<check::PlacedPlan>& placed) {
  const auto make = [&] { placed.emplace(mask, problem, options); };
  if (problem.device.type == DeviceType::cpu) return seconds_of(make);
  make();
  return seconds_with_device(make);
}

Problem problem_of(const AttendOptions& options, const MaskShape& mask) {
  Problem problem = apply(options.problem, mask);
  problem.dropout = options.dropout.probability;
  return problem;
}

/// Runs, times and checks attention, then draws the mask as the plan's kernels see it.
AttendReport measure(const AttendOptions& options, const Mask& given, OutputFile* png, Console& console) {
  const Problem problem = problem_of(options, given.shape());
  const Mask mask = in_form(in_blocks(given, options.input), options.input);
  ProgressBar progress(console, options.dense ? 100 : 20);
  progress.begin("random inputs", 4);
  const check::AttentionTensors host(problem, options.problem.seed);
  const check::PlacedTensors tensors(host, problem.device);
  const Execution execution = options.execution();

  progress.begin("schedule");
  std::optional<check::PlacedPlan> placed;
  const double schedule_seconds = time_plan(mask, problem, {.reorder = options.reorder}, placed);
  AttendReport report = describe(options, *placed, mask);
  report.schedule_seconds = schedule_seconds;
  progress.begin("forward", 4);
  report.times.forward = seconds_on(problem.device, false, [&] { placed->forward(tensors.forward(), execution); });
  progress.begin("backward", 6);
  report.times.backward = seconds_on(problem.device, false, [&] { run_backward(*placed, tensors, execution); });
  tensors.fetch();
  progress.begin("check against the reference", 5);
  report.errors =
      check_samples(scores_of(options, given, problem), problem, execution.dropout, host, options.problem.seed);
  if (options.dense) report.dense = time_dense(report, mask, tensors, execution, progress);
  if (png != nullptr) {
    png->commit(MaskPicture(seen_by_kernels(placed->plan(), mask), report.mask.tile, 0, 0).png());
  }
  return report;
}

int attend(const AttendOptions& options, Console& console) {
  std::optional<OutputFile> png;
  if (!options.png.empty()) png.emplace(options.png);
  const AttendReport report = measure(options, given_mask(options), png ? &*png : nullptr, console);
  console.out << (options.json ? to_json_text(report) : to_text(report));
  return report.errors.passes() ? 0 : 1;
}

}  // namespace

void add_attend(CLI::App& command, Console& console, int& status) {
  Subcommand sub(command, "attend", "Attend over random tensors under a mask, check and time it");
  const auto options = std::make_shared<AttendOptions>();
  options->problem.usual_seqlen = 16384;
  sub.option("mask,--mask", options->mask,
             "A family, or FILE.npy: a dense mask, 1 = visible [" + std::string(kUsualMask) + "]");
  sub.option("--documents", options->documents, "Document lengths of the family, such as 4,3,3; see show --help");
  add_mask_input_options(sub, options->input);
  add_form_option(sub, options->input);
  sub.flag("--reorder", options->reorder, "Reorder tokens where that saves tiles");
  add_dropout_options(sub, options->dropout);
  add_problem_options(sub, options->problem);
  sub.flag("!--no-dense", options->dense, "Leave out the slow run with a dense mask");
  sub.option("--png", options->png, "Draw the mask of the first sequence into this PNG file").ends_in(".png");
  sub.flag("--json", options->json, "Print JSON");
  sub.on_run([options, &console, &status] { status = attend(*options, console); });
}

}  // namespace flashmask::cli
