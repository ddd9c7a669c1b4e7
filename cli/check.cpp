#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "check/kernel_check.h"
#include "flashmask/executor.h"
#include "progress_bar.h"
#include "quantities.h"
#include "subcommands.h"
#include "table.h"

namespace flashmask::cli {
namespace {

struct CheckOptions {
  check::CheckRequest request;
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

nlohmann::ordered_json json_of(const std::vector<check::KernelVerdict>& verdicts) {
  auto results = nlohmann::ordered_json::array();
  for (const check::KernelVerdict& v : verdicts) {
    results.push_back({{"kernel", v.kernel},
                       {"cases", v.cases},
                       {"error_over_bound", v.worst},
                       {"where", v.where},
                       {"passes", v.passes()}});
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

int check(const CheckOptions& options, Console& console) {
  set_thread_count(options.threads);
  const std::vector<check::KernelVerdict> verdicts = verdicts_of(options.request, console);
  console.out << (options.json ? json_of(verdicts).dump(2) + "\n" : text_of(verdicts));
  return all_pass(verdicts) ? 0 : 1;
}

}  // namespace

void add_check(CLI::App& app, Console& console, int& status) {
  CLI::App* sub = app.add_subcommand("check", "Hold every kernel that runs here against the reference");
  const auto options = std::make_shared<CheckOptions>();
  sub->add_option("--kernel", options->request.kernel, "Only kernels whose name begins so");
  sub->add_option("--mask", options->request.mask, "Only the corpus mask of this name");
  sub->add_flag("--quick", options->request.quick, "One size a mask instead of all");
  sub->add_option("--threads", options->threads, "Threads [as many as the process may use]")
      ->check(CLI::Range(1, 4096));
  sub->add_flag("--json", options->json, "Print JSON");
  sub->callback([options, &console, &status] { status = check(*options, console); });
}

}  // namespace flashmask::cli
