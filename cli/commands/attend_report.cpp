// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/attend_report.h"

#include <nlohmann/json.hpp>

#include "cli/base/quantities.h"
#include "cli/base/table.h"
#include "cli/commands/dropout_options.h"

namespace flashmask::cli {
namespace {

std::string heads_text(const Problem& p) {
  const std::string heads = p.kv_heads == p.query_heads
                                ? with_commas(p.query_heads)
                                : with_commas(p.query_heads) + " over " + with_commas(p.kv_heads) + " key heads";
  return heads + " of " + std::to_string(p.head_dim) + ", " + to_string(p.dtype);
}

std::string tiles_text(const Explanation& mask) {
  return with_commas(mask.tiles.full) + " full, " + with_commas(mask.tiles.partial) + " partial, " +
         with_commas(mask.tiles.skip) + " skipped, of " + std::to_string(mask.tile.rows) + " × " +
         std::to_string(mask.tile.columns) + " (forward)";
}

std::string memory_text(const Explanation& mask) {
  const auto sparse = static_cast<double>(mask.mask_bytes + mask.schedule_bytes);
  return bytes(sparse) + ", dense mask " + bytes(static_cast<double>(mask.dense_bytes));
}

void add_description(const AttendReport& r, Table& table) {
  const Problem& p = r.problem;
  const std::string sequences = p.batch == 1 ? "one sequence" : with_commas(p.batch) + " sequences";
  const std::string keys = p.key_length == p.query_length ? "" : ", " + with_commas(p.key_length) + " keys";
  table.add({"mask", r.mask.description});
  table.add({"tokens", with_commas(r.tokens()) + " in " + sequences + keys});
  table.add({"heads", heads_text(p)});
  if (r.dropout) table.add({"dropout", to_text(r.problem.dropout, *r.dropout)});
  table.add({"device", r.device});
  table.add({"kernels", r.forward_kernel});
  table.add({"", r.backward_kernel});
  table.add({"form", to_string(r.mask.form) + ": " + r.mask.why});
  table.add({"density", percent(r.mask.density) + " of the scores are visible"});
  table.add({"tiles", tiles_text(r.mask)});
  if (r.reordering) table.add({"reordering", to_text(*r.reordering)});
  table.add({"mask memory", memory_text(r.mask)});
  table.add({"schedule time", seconds(r.schedule_seconds) + ", once for all layers"});
}

/// Times of this mask and, when it was run, of the dense mask.
std::string times_text(const AttendReport& r) {
  using enum Table::Align;
  Table table({left, right, right, right});
  table.add(r.dense ? std::vector<std::string>{"", "this mask", "dense mask", "speed-up"}
                    : std::vector<std::string>{"", "this mask"});
  const auto line = [&](const char* name, double sparse, double dense) {
    std::vector<std::string> cells = {name, seconds(sparse)};
    if (r.dense) cells.insert(cells.end(), {seconds(dense), significant(dense / sparse) + " times"});
    table.add(cells);
  };
  const Times dense = r.dense.value_or(Times{});
  line("forward", r.times.forward, dense.forward);
  line("backward", r.times.backward, dense.backward);
  line("both", r.times.both(), dense.both());
  return table.text();
}

void add_results(const AttendReport& r, Table& table) {
  const SampledErrors& e = r.errors;
  table.add({"tokens/s", with_commas(static_cast<std::int64_t>(r.tokens_per_second())) + ", forward and backward"});
  table.add({"largest error", significant(e.largest_error()) + ", " + significant(e.largest_ratio()) +
                                  " of the bound: " + (e.passes() ? "passes" : "MISSES")});
  table.add({"", "o, lse, dq of " + with_commas(e.rows) + " rows, dk, dv of " + with_commas(e.columns) +
                     " columns, against double precision"});
}

nlohmann::ordered_json json_of(const Times& times) {
  return {{"forward_seconds", times.forward}, {"backward_seconds", times.backward}};
}

nlohmann::ordered_json json_of(const check::Comparison& comparison) {
  return {{"error", comparison.error}, {"bound", comparison.bound}};
}

nlohmann::ordered_json json_of(const Problem& p) {
  return {{"batch", p.batch},           {"query_length", p.query_length}, {"key_length", p.key_length},
          {"heads", p.query_heads},     {"kv_heads", p.kv_heads},         {"head_dim", p.head_dim},
          {"dtype", to_string(p.dtype)}};
}

nlohmann::ordered_json json_of(const Explanation& mask) {
  return {{"mask", mask.description},
          {"form", to_string(mask.form)},
          {"why", mask.why},
          {"visible_pairs", mask.visible_pairs},
          {"density", mask.density},
          {"tile", {mask.tile.rows, mask.tile.columns}},
          {"tiles", {{"skip", mask.tiles.skip}, {"partial", mask.tiles.partial}, {"full", mask.tiles.full}}},
          {"mask_bytes", mask.mask_bytes},
          {"schedule_bytes", mask.schedule_bytes},
          {"dense_bytes", mask.dense_bytes}};
}

nlohmann::ordered_json json_of(const SampledErrors& e) {
  return {{"rows", e.rows},
          {"columns", e.columns},
          {"o", json_of(e.o)},
          {"lse", json_of(e.lse)},
          {"dq", json_of(e.grad_q)},
          {"dk", json_of(e.grad_k)},
          {"dv", json_of(e.grad_v)},
          {"largest_error", e.largest_error()},
          {"error_over_bound", e.largest_ratio()},
          {"passes", e.passes()}};
}

}  // namespace

double AttendReport::tokens_per_second() const { return static_cast<double>(tokens()) / times.both(); }

std::optional<double> AttendReport::speed_up() const {
  if (!dense) return std::nullopt;
  return dense->both() / times.both();
}

std::string to_text(const AttendReport& report) {
  Table table({Table::Align::left, Table::Align::left});
  add_description(report, table);
  Table results({Table::Align::left, Table::Align::left});
  add_results(report, results);
  return table.text() + "\n" + times_text(report) + "\n" + results.text();
}

std::string to_json_text(const AttendReport& report) {
  nlohmann::ordered_json json;
  json["problem"] = json_of(report.problem);
  if (report.dropout) json["dropout"] = to_json(report.problem.dropout, *report.dropout);
  json["device"] = report.device;
  json["kernels"] = {report.forward_kernel, report.backward_kernel};
  json["mask"] = json_of(report.mask);
  if (report.reordering) json["reordering"] = to_json(*report.reordering);
  json["schedule_seconds"] = report.schedule_seconds;
  json["times"] = json_of(report.times);
  json["tokens_per_second"] = report.tokens_per_second();
  if (report.dense) {
    json["dense_times"] = json_of(*report.dense);
    json["speed_up"] = *report.speed_up();
  }
  json["errors"] = json_of(report.errors);
  return json.dump(2) + "\n";
}

}  // namespace flashmask::cli
