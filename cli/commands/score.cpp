// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands/subcommands.h"
#include "flashmask/error.h"
#include "flashmask/score_report.h"

namespace flashmask::cli {
namespace {

using Json = nlohmann::ordered_json;

struct ScoreCommandOptions {
  std::string text, dtype = "bf16";
  ScoreReportOptions report;
  bool json = false;
};

Json compiled_json(const CompiledKernel& kernel) {
  return {{"direction", to_string(kernel.direction)},
          {"kernel", kernel.name},
          {"seconds", kernel.seconds},
          {"spilled_bytes", kernel.spilled},
          {"compiler", kernel.compiler}};
}

Json kernel_json(const ScoreReport::Kernel& kernel) {
  return {{"device", kernel.device},
          {"direction", to_string(kernel.direction)},
          {"kernel", kernel.name},
          {"how", kernel.how}};
}

Json score_json(const ScoreReport& report) {
  Json kernels = Json::array(), compiled = Json::array();
  for (const ScoreReport::Kernel& kernel : report.kernels) kernels.push_back(kernel_json(kernel));
  for (const CompiledKernel& kernel : report.compiled) compiled.push_back(compiled_json(kernel));
  return {{"text", report.text},
          {"slope", report.slope},
          {"bias_slope", report.bias_slope},
          {"depends_on", report.depends},
          {"by_distance", report.by_distance},
          {"kernels", kernels},
          {"compiled", compiled},
          {"not_compiled", report.not_compiled}};
}

}  // namespace

void add_score(CLI::App& command, Console& console, int&) {
  Subcommand sub(command, "score", "What a change of scores computes, and what serves it");
  const auto options = std::make_shared<ScoreCommandOptions>();
  sub.option("text", options->text,
             "Steps, such as \"softcap(50) | alibi\", or an expression, such as \"mul(score, score)\"");
  sub.option("--arch", options->report.architecture,
             "Kind of GPU, such as sm_90, here or not; else the first one here");
  sub.option("--head-dim", options->report.head_dim, "Head dims").range(1, 512).show_default();
  sub.option("--dtype", options->dtype, "Of tensors on a GPU").one_of({"bf16", "f16"}).show_default();
  sub.flag("!--no-compile", options->report.compiles, "Do not compile kernels to say what that takes");
  sub.flag("--json", options->json, "Print JSON");
  sub.footer(
      "Compiling takes NVRTC, which PyTorch brings along, but no GPU; FLASHMASK_NVRTC names its file or folder.");
  sub.on_run([options, &console] {
    if (options->text.empty())
      throw Error(Status::invalid_argument, "give a change of scores; see flashmask score --help");
    options->report.dtype = options->dtype == "f16" ? DType::f16 : DType::bf16;
    const ScoreReport made = report(read_score(options->text), options->report);
    console.out << (options->json ? score_json(made).dump(2) + "\n" : to_string(made));
  });
}

}  // namespace flashmask::cli
