#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>

#include "attend_report.h"
#include "check/host_tensor.h"
#include "flashmask/attention.h"
#include "mask_picture.h"
#include "output_file.h"
#include "problem_options.h"
#include "progress_bar.h"
#include "sampled_check.h"
#include "subcommands.h"
#include "timing.h"
#include "workload.h"

namespace flashmask::cli {
namespace {

struct AttendOptions {
  WorkloadRequest workload;
  ProblemOptions problem;
  std::string png;
  bool dense = true, json = false;
};

void run_backward(const Plan& planned, const check::AttentionTensors& tensors) {
  BackwardTensors gradients = tensors.backward();
  gradients.grad_lse = {};
  backward(planned, gradients);
}

/// Both directions may share one schedule.
std::size_t schedule_bytes(const Plan& planned) {
  const TileSchedule& rows = planned.schedule(Direction::forward);
  const TileSchedule& columns = planned.schedule(Direction::backward);
  return rows.memory_bytes() + (&rows == &columns ? 0 : columns.memory_bytes());
}

/// What of the report the plan knows.
AttendReport describe(const Workload& workload, const Plan& planned, const Mask& mask) {
  AttendReport report;
  report.workload = workload;
  report.problem = planned.problem();
  report.device = to_string(planned.problem().device) + ", " + std::to_string(default_executor().workers()) +
                  " threads, " + planned.kernel(Direction::forward).arch;
  report.forward_kernel = planned.kernel(Direction::forward).name;
  report.backward_kernel = planned.kernel(Direction::backward).name;
  report.mask = explain(mask, planned.schedule(Direction::forward).tile());
  report.mask.schedule_bytes = schedule_bytes(planned);
  return report;
}

/// How much longer the dense runs will take, roughly: the scores they compute over those of the active tiles.
double dense_factor(const Explanation& mask) { return 1 / std::max(mask.waste * mask.density, 1e-6); }

/// The dense runs take long: they are measured once, after the others have warmed everything up.
Times time_dense(const AttendReport& report, const Mask& mask, const check::AttentionTensors& tensors,
                 ProgressBar& progress) {
  const Plan dense = plan(mask, report.problem, {.visit = Visit::all, .kernel = {}});
  Times times;
  progress.begin("dense mask, forward", 25, report.times.forward * dense_factor(report.mask));
  times.forward = seconds_of([&] { forward(dense, tensors.forward()); });
  progress.begin("dense mask, backward", 55, report.times.backward * dense_factor(report.mask));
  times.backward = seconds_of([&] { run_backward(dense, tensors); });
  return times;
}

AttendReport measure(const AttendOptions& options, const Workload& workload, Console& console) {
  Problem problem = apply(options.problem);
  problem.batch = workload.sequences();
  ProgressBar progress(console, options.dense ? 100 : 20);
  progress.begin("random inputs", 4);
  const check::AttentionTensors tensors(problem, options.problem.seed);

  progress.begin("schedule");
  std::optional<Plan> planned;
  const double schedule_seconds = seconds_of([&] { planned = plan(workload.mask(), problem); });
  const Mask mask = workload.mask();
  AttendReport report = describe(workload, *planned, mask);
  report.schedule_seconds = schedule_seconds;
  progress.begin("forward", 4);
  report.times.forward = median_seconds([&] { forward(*planned, tensors.forward()); });
  progress.begin("backward", 6);
  report.times.backward = median_seconds([&] { run_backward(*planned, tensors); });
  progress.begin("check against the reference", 5);
  report.errors = check_samples(workload, problem, tensors, options.problem.seed);
  if (options.dense) report.dense = time_dense(report, mask, tensors, progress);
  return report;
}

int attend(AttendOptions options, Console& console) {
  options.workload.seqlen = options.problem.seqlen;
  options.workload.sequences = options.problem.batch;
  std::optional<OutputFile> png;
  if (!options.png.empty()) png.emplace(options.png);
  const Workload workload = load_workload(options.workload);
  const AttendReport report = measure(options, workload, console);
  if (png) png->commit(MaskPicture(workload.mask(0), report.mask.tile, 0, 0).png());
  console.out << (options.json ? to_json(report).dump(2) + "\n" : to_text(report));
  return report.errors.passes() ? 0 : 1;
}

void add_workload_options(CLI::App& app, WorkloadRequest& request) {
  const std::string group = "Workload";
  app.add_option("csv", request.csv, "CSV file of lengths in tokens, with a header [the shipped Alpaca lengths]");
  app.add_option("--prompt", request.prompt, "Column of the prompt lengths [gpt2_prompt]")->group(group);
  app.add_option("--outputs", request.outputs, "Columns of the output lengths, separated by commas [gpt2_out]")
      ->delimiter(',')
      ->group(group);
  app.add_option_function<std::string>(
         "--task", [&request](const std::string& name) { request.task = parse_task(name); },
         "sft, dpo, rm, document or prefix [sft]")
      ->check(CLI::IsMember(kTaskNames))
      ->group(group);
  app.add_option_function<std::string>(
         "--packing",
         [&request](const std::string& name) {
           request.packing = name == "order" ? Packing::order : Packing::best_fit;
         },
         "order: as in the file, or best-fit: longest first [order]")
      ->check(CLI::IsMember({"order", "best-fit"}))
      ->group(group);
}

}  // namespace

void add_attend(CLI::App& app, Console& console, int& status) {
  CLI::App* sub = app.add_subcommand("attend", "Pack real lengths, attend over them, check and time it");
  const auto options = std::make_shared<AttendOptions>();
  options->problem.seqlen = 16384;
  add_workload_options(*sub, options->workload);
  add_problem_options(*sub, options->problem);
  sub->add_flag("!--no-dense", options->dense, "Leave out the slow run with a dense mask");
  sub->add_option("--png", options->png, "Draw the mask of the first sequence into this PNG file");
  sub->add_flag("--json", options->json, "Print JSON");
  sub->callback([options, &console, &status] { status = attend(*options, console); });
}

}  // namespace flashmask::cli
