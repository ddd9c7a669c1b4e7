// SPDX-License-Identifier: Apache-2.0
#include "cli/papers/papers_report.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/base/quantities.h"
#include "cli/base/table.h"

namespace flashmask::cli {
namespace {

using enum Table::Align;

std::string heading(const PapersCase& one, const PapersPlace& place) {
  static const std::map<std::string, std::string> what = {
      {"alpaca", "packed Alpaca documents"},
      {"medusa", "MEDUSA trees of K levels, s candidates a node"},
      {"longformer", "Longformer, 4 neighbours on either side"},
      {"reordering", "masks whose tokens are in no good order"},
      {"block-sparse", "block maps that keep a share of the blocks"}};
  return one.table + ": " + what.at(one.table) + "; forward + backward, " + heads_text(place) + " of " +
         std::to_string(one.head_dim) + "\n";
}

std::string times(double ratio) { return ratio == 0 ? "" : significant(ratio); }

std::string tiles_text(std::int64_t active, const TileCounts& all) {
  return with_commas(active) + " of " + with_commas(all.active() + all.skip);
}

std::string size_text(const PapersCase& one) { return one.size.empty() ? "" : " (" + one.size + ")"; }

/// One line per mask, and a second for those that were reordered.
std::string masks_table(const std::vector<PapersResult>& results) {
  Table table({left, right, right, left, right, right, right, right, right, right, right});
  table.add({"mask", "tokens", "visible", "form", "tiles (forward)", "prepare",
             results.front().asked.causal ? "causal" : "unmasked", "every tile", "ours", "faster", "published"});
  for (const PapersResult& r : results) {
    table.add({r.asked.mask + size_text(r.asked), with_commas(r.asked.tokens), percent(r.density), to_string(r.form),
               tiles_text(r.tiles.active(), r.tiles), seconds(r.mask_seconds + r.plan_seconds),
               seconds(r.unmasked.total()), seconds(r.every_tile.total()), seconds(r.ours.total()), times(r.speedup()),
               times(r.asked.published.plain)});
    if (!r.reordered) continue;
    const ReorderedResult& reordered = *r.reordered;
    table.add({"  reordered", "", "", "", tiles_text(reordered.active_tiles, r.tiles),
               seconds(reordered.prepare_seconds), "", "", seconds(reordered.seconds.total()),
               times(r.unmasked.total() / reordered.seconds.total()), times(r.asked.published.reordered)});
  }
  return table.text();
}

/// The time that a direction may take: 1.1 · kept share · dense time + three copies of q, k, v, o.
double allowed(const PapersResult& r, double BothDirections::*direction) {
  return 1.1 * r.asked.kept_blocks * r.unmasked.*direction + r.copies_seconds;
}

std::string blocks_table(const std::vector<PapersResult>& results) {
  Table table({left, right, right, right, right, right, right, right, right, right});
  table.add(
      {"map", "kept", "tokens", "tiles (forward)", "prepare", "unmasked", "ours", "faster", "forward", "backward"});
  for (const PapersResult& r : results) {
    table.add({r.asked.mask, r.asked.size, with_commas(r.asked.tokens), tiles_text(r.tiles.active(), r.tiles),
               seconds(r.mask_seconds + r.plan_seconds), seconds(r.unmasked.total()), seconds(r.ours.total()),
               times(r.speedup()), significant(r.ours.forward / allowed(r, &BothDirections::forward)),
               significant(r.ours.backward / allowed(r, &BothDirections::backward))});
  }
  return table.text() + "forward, backward: time ÷ (1.1 × kept share × unmasked time + three copies of q, k, v, o)\n";
}

nlohmann::ordered_json json_of(const BothDirections& seconds) {
  return {{"forward", seconds.forward}, {"backward", seconds.backward}};
}

nlohmann::ordered_json json_of(const PapersResult& r) {
  nlohmann::ordered_json json = {
      {"table", r.asked.table},
      {"mask", r.asked.mask},
      {"size", r.asked.size},
      {"tokens", r.asked.tokens},
      {"head_dim", r.asked.head_dim},
      {"baseline", r.asked.causal ? "causal" : "full"},
      {"form", to_string(r.form)},
      {"density", r.density},
      {"tiles", {{"full", r.tiles.full}, {"partial", r.tiles.partial}, {"skip", r.tiles.skip}}},
      {"mask_seconds", r.mask_seconds},
      {"plan_seconds", r.plan_seconds},
      {"unmasked_seconds", json_of(r.unmasked)},
      {"seconds", json_of(r.ours)}};
  if (r.asked.kept_blocks > 0) {
    json["kept_blocks"] = r.asked.kept_blocks;
    json["copies_seconds"] = r.copies_seconds;
    return json;
  }
  json["every_tile_seconds"] = json_of(r.every_tile);
  json["reordering"] = r.reordering;
  if (r.reordered) {
    json["reordered"] = {{"prepare_seconds", r.reordered->prepare_seconds},
                         {"active_tiles", r.reordered->active_tiles},
                         {"seconds", json_of(r.reordered->seconds)}};
  }
  if (r.asked.published.plain > 0) json["published_speedup"] = r.asked.published.plain;
  if (r.asked.published.reordered > 0) json["published_reordered_speedup"] = r.asked.published.reordered;
  return json;
}

}  // namespace

std::string heads_text(const PapersPlace& place) {
  return (place.batch() == 1 ? "" : std::to_string(place.batch()) + " x ") + std::to_string(place.heads()) + " heads";
}

std::string papers_table(const std::vector<PapersResult>& results) {
  const bool blocks = results.front().asked.kept_blocks > 0;
  return heading(results.front().asked, results.front().place) +
         (blocks ? blocks_table(results) : masks_table(results));
}

nlohmann::ordered_json papers_json(const std::vector<PapersResult>& results) {
  auto all = nlohmann::ordered_json::array();
  for (const PapersResult& r : results) all.push_back(json_of(r));
  return all;
}

std::vector<SpeedupLine> speedup_lines(const std::vector<PapersResult>& results) {
  std::vector<SpeedupLine> lines;
  const auto add = [&](const std::string& name, bool reordered, SpeedupLine::Sample sample) {
    auto line = std::find_if(lines.begin(), lines.end(),
                             [&](const SpeedupLine& l) { return l.name == name && l.reordered == reordered; });
    if (line == lines.end()) line = lines.insert(line, {name, reordered, {}});
    line->samples.push_back(sample);
  };
  for (const PapersResult& r : results) {
    if (!r.asked.in_plot) continue;
    const std::string name = r.asked.table == "reordering" ? r.asked.mask : r.asked.table + " " + r.asked.mask;
    add(name, false, {r.asked.tokens, r.speedup()});
    if (r.reordered) add(name, true, {r.asked.tokens, r.unmasked.total() / r.reordered->seconds.total()});
  }
  return lines;
}

}  // namespace flashmask::cli
