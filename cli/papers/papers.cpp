// SPDX-License-Identifier: Apache-2.0
#include "cli/papers/papers.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/base/device_option.h"
#include "cli/base/names.h"
#include "cli/base/progress_bar.h"
#include "cli/base/quantities.h"
#include "cli/files/output_file.h"
#include "cli/papers/papers_bench.h"
#include "cli/papers/papers_report.h"
#include "flashmask/error.h"
#include "flashmask/executor.h"
#include "flashmask/kernels.h"

namespace flashmask::cli {
namespace {

using Results = std::vector<PapersResult>;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

Results time_all(const std::vector<PapersCase>& cases, const PapersRun& how, Console& console) {
  PapersBench bench(how.seed, how.place);
  ProgressBar progress(console, std::ssize(cases));
  Results results;
  for (const PapersCase& one : cases) {
    progress.begin(one.table + ", " + one.mask + ", " + with_commas(one.tokens));
    results.push_back(bench.run(one));
  }
  return results;
}

/// Says how times were taken, and on what device.
std::string footer(const PapersPlace& place) {
  if (place.on_gpu())
    return "times: launches back to back, the median\ndevice: " + description_of(place.device) +
           (place.kernel.empty() ? "" : ", kernels " + place.kernel);
  return "times: the fastest of at least four runs; runs longer than 0.4 s are timed once, unmasked ones twice\n"
         "instruction set: " +
         instruction_sets().front() + ", threads: " + std::to_string(default_executor().workers());
}

std::string text_of(const Results& results, double duration) {
  std::string text;
  for (auto begin = results.begin(); begin != results.end();) {
    const auto other = [&](const PapersResult& r) { return r.asked.table != begin->asked.table; };
    const auto end = std::find_if(begin, results.end(), other);
    text += papers_table({begin, end}) + "\n";
    begin = end;
  }
  return text + "published: on its own device\n" + footer(results.front().place) + ", whole run: " + seconds(duration) +
         "\n";
}

nlohmann::ordered_json json_of(const Results& results, double duration) {
  const PapersPlace& place = results.front().place;
  return {{"device", to_string(place.device)},
          {"kernel", place.kernel},
          {"dtype", to_string(place.dtype())},
          {"batch", place.batch()},
          {"heads", place.heads()},
          {"instruction_set", instruction_sets().front()},
          {"threads", default_executor().workers()},
          {"seconds", duration},
          {"results", papers_json(results)}};
}

bool is_png(const std::string& path) { return path.ends_with(".png"); }

void plot(const Results& results, OutputFile& file) {
  const SpeedupChart chart(
      "Times faster than every score computed, forward + backward, " + heads_text(results.front().place) + " of 64",
      speedup_lines(results));
  file.commit(is_png(file.path()) ? chart.png() : chart.svg());
}

void check_plot(const std::vector<PapersCase>& cases, const std::string& path) {
  if (!is_png(path) && !path.ends_with(".svg")) {
    throw Error(Status::invalid_argument,
                "--plot: \"" + path + "\" names no picture; give a path that ends in .svg or .png");
  }
  const bool drawn = std::any_of(cases.begin(), cases.end(), [](const PapersCase& one) { return one.in_plot; });
  if (!drawn)
    throw Error(Status::invalid_argument, "--plot: no table with lengths to draw; give " + join(kPapersTables));
}

}  // namespace

void add_papers_options(Subcommand& sub, PapersOptions& options) {
  const std::string group = "Published evaluations";
  const std::vector<Option> before = sub.options();
  Option papers = sub.flag("--papers", options.asked, "Time the masks of published evaluations").group(group);
  const std::vector<std::string> fitting = {"--device", "--kernel", "--threads", "--seed", "--json", "--help"};
  for (const Option& other : before) {
    const auto fits = [&other](const std::string& name) { return other.is_called(name); };
    if (std::none_of(fitting.begin(), fitting.end(), fits)) papers.excludes(other);
  }
  sub.list("--tables", options.tables, "Of " + join(kPapersTables, " ") + " [all]", kPapersTables)
      .needs(papers)
      .group(group);
  sub.option("--max-tokens", options.max_tokens, "Leave out longer masks")
      .range(128, 16384)
      .show_default()
      .needs(papers)
      .group(group);
  sub.option("--plot", options.plot, "Draw how much faster each mask is, as .svg or .png").needs(papers).group(group);
}

void run_papers(const PapersOptions& options, const PapersRun& how, Console& console) {
  const auto begin = Clock::now();
  const std::vector<PapersCase> cases = papers_cases(options.tables, options.max_tokens);
  if (cases.empty()) {
    throw Error(Status::invalid_argument, "bench: no mask of " + join(options.tables) + " has at most " +
                                              with_commas(options.max_tokens) + " tokens; give more --max-tokens");
  }
  std::optional<OutputFile> file;
  if (!options.plot.empty()) {
    check_plot(cases, options.plot);
    file.emplace(options.plot);
  }
  set_thread_count(how.threads);
  const Results results = time_all(cases, how, console);
  if (file) plot(results, *file);
  const double duration = seconds_since(begin);
  console.out << (how.json ? json_of(results, duration).dump(2) + "\n" : text_of(results, duration));
}

}  // namespace flashmask::cli
