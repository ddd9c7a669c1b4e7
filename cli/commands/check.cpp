// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/base/device_option.h"
#include "cli/base/memory_limit.h"
#include "cli/base/progress_bar.h"
#include "cli/base/quantities.h"
#include "cli/base/table.h"
#include "cli/commands/dropout_options.h"
#include "cli/commands/reordering.h"
#include "cli/commands/subcommands.h"
#include "cli/masks/mask_input.h"
#include "flashmask/block_map.h"
#include "flashmask/error.h"
#include "flashmask/executor.h"
#include "kit/kernel_check.h"

namespace flashmask::cli {
namespace {

struct CheckOptions {
  check::CheckRequest request;
  std::string mask;  ///< a corpus entry or a file
  MaskInput input;
  DropoutOptions dropout;
  std::uint64_t seed = 1;
  int threads = 0;
  bool json = false;
};

std::string verdict_of(const check::KernelVerdict& verdict) {
  if (verdict.cases == 0) return "serves none of the cases";
  return verdict.passes() ? "passes" : "MISSES";
}

std::string text_of(const std::vector<check::KernelVerdict>& verdicts) {
  using enum Table::Align;
  Table table({left, right, right, left, left});
  table.add({"kernel", "cases", "error ÷ bound", "", "where it is largest"});
  for (const check::KernelVerdict& v : verdicts) {
    table.add({v.kernel, with_commas(v.cases), fixed(v.worst, 3), verdict_of(v), v.where});
  }
  return table.text();
}

nlohmann::ordered_json json_of(const CheckOptions& options, const std::vector<check::KernelVerdict>& verdicts) {
  auto results = nlohmann::ordered_json::array();
  for (const check::KernelVerdict& v : verdicts) {
    results.push_back({{"kernel", v.kernel},
                       {"cases", v.cases},
                       {"error_over_bound", v.worst},
                       {"where", v.where},
                       {"passes", v.passes()}});
    if (options.dropout.given()) {
      results.back()["dropout"] = to_json(options.dropout.probability, options.dropout.state(options.seed));
    }
  }
  return results;
}

bool all_pass(const std::vector<check::KernelVerdict>& verdicts) {
  return std::all_of(verdicts.begin(), verdicts.end(), [](const check::KernelVerdict& v) { return v.passes(); });
}

std::vector<check::KernelVerdict> verdicts_of(const check::CheckRequest& request, Console& console) {
  std::optional<ProgressBar> bar;
  return check::check_kernels(request, [&](const std::string& name, std::int64_t, std::int64_t cases) {
    if (!bar) bar.emplace(console, cases);
    bar->begin(name);
  });
}

/// The reference computes every score, forward and backward, a few at a time. It needs memory for its tensors, and for
/// dropout, whose factors it gets for every score.
void check_size(const CheckOptions& options, const MaskShape& shape) {
  const auto number = [](std::int64_t n) { return static_cast<double>(n); };
  const double scores = number(shape.batch) * number(shape.heads) * number(shape.rows) * number(shape.columns);
  const double bytes_a_score = options.dropout.given() ? 2 * 9 : 0;
  const double tensors = number(shape.batch) * number(shape.heads) * number(shape.rows + shape.columns) * 128 * 8 * 12;
  check_memory(tensors + bytes_a_score * scores, "checking every score", "run flashmask attend, which checks samples");
}

/// The mask of a file, within its blocks; empty: use the corpus.
std::optional<check::GivenMask> read_given(const CheckOptions& options) {
  const bool named = !options.mask.empty() && !is_mask_file(options.mask);
  if (named && (options.input.png || options.input.block_map)) {
    throw Error(Status::invalid_argument,
                "check: --mask " + options.mask + " is of the corpus, in many sizes; " +
                    "--mask-png and --block-map have one size: give them alone or with FILE.npy");
  }
  const std::string file = named ? "" : options.mask;
  const std::optional<NamedMask> one = read_mask(file, options.input, {});
  if (one) return check::GivenMask{one->name, in_blocks(one->mask, options.input)};
  const std::optional<BlockMap> map = read_map(options.input, std::nullopt, std::nullopt);
  if (!map) return std::nullopt;
  return check::GivenMask{"the block map", from_block_map(*map)};
}

check::CheckRequest request_of(const CheckOptions& options) {
  check::CheckRequest request = options.request;
  request.given = read_given(options);
  if (request.given) check_size(options, request.given->mask.shape());
  if (!request.given) request.mask = options.mask;
  if (options.dropout.given()) {
    request.dropout = options.dropout.probability;
    request.dropout_state = options.dropout.state(options.seed);
  }
  check_one_plan("check", request.reorder, request.invariant, options.dropout);
  return request;
}

std::string dropout_line(const CheckOptions& options) {
  if (!options.dropout.given()) return "";
  return "\ndropout " + to_text(options.dropout.probability, options.dropout.state(options.seed)) + "\n";
}

int check(const CheckOptions& options, Console& console) {
  set_thread_count(options.threads);
  const std::vector<check::KernelVerdict> verdicts = verdicts_of(request_of(options), console);
  console.out << (options.json ? json_of(options, verdicts).dump(2) + "\n" : text_of(verdicts) + dropout_line(options));
  return all_pass(verdicts) ? 0 : 1;
}

}  // namespace

void add_check(CLI::App& command, Console& console, int& status) {
  Subcommand sub(command, "check", "Hold every kernel that runs here against the reference");
  const auto options = std::make_shared<CheckOptions>();
  add_device_option(sub, options->request.device, "all that are here");
  sub.option("--kernel", options->request.kernel, "Only kernels whose name begins so");
  sub.option("--mask", options->mask, "Only the corpus mask of this name, or FILE.npy instead of the corpus");
  add_mask_input_options(sub, options->input);
  add_dropout_options(sub, options->dropout);
  sub.option("--seed", options->seed, "Seed of dropout [1]").group("Dropout");
  sub.flag("--reorder", options->request.reorder, "Reorder tokens where that saves tiles");
  sub.flag("--invariant", options->request.invariant, "Begin tiles where documents begin, too");
  sub.flag("--quick", options->request.quick, "One size per mask instead of all");
  sub.option("--threads", options->threads, "Threads [as many as the process may use]").range(1, 4096);
  sub.flag("--json", options->json, "Print JSON");
  sub.on_run([options, &console, &status] { status = check(*options, console); });
}

}  // namespace flashmask::cli
