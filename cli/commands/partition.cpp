// SPDX-License-Identifier: Apache-2.0
#include "flashmask/partition.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/base/quantities.h"
#include "cli/base/table.h"
#include "cli/commands/subcommands.h"
#include "cli/files/output_file.h"
#include "cli/masks/mask_arguments.h"
#include "cli/masks/mask_input.h"
#include "cli/pictures/partition_picture.h"
#include "flashmask/error.h"
#include "flashmask/explain.h"
#include "flashmask/slice.h"

namespace flashmask::cli {
namespace {

constexpr std::int64_t kPictureCells = 1280;
/// With more ranks, counting the pairs of each takes longer than all the rest.
constexpr std::int32_t kMostCountedRanks = 64;
const std::vector<std::string> kDivisions = {"balanced", "contiguous", "zigzag"};

struct PartitionCommand {
  std::string name, ranks;
  MaskArguments mask;
  std::vector<std::string> given;
  MaskInput input;
  std::string division;
  PartitionOptions options;
  std::int64_t tflops = 600, exchange_us = 80;
  std::string png, svg;
  bool json = false, picture = true;
};

/// "8", or "4x8": nodes x ranks per node.
std::vector<std::int32_t> sizes_of(const std::string& text) {
  std::vector<std::int32_t> sizes;
  if (text.empty()) throw Error(Status::invalid_argument, "partition: give --ranks, such as 8, or 4x8: nodes x ranks");
  for (const std::int64_t size : parse_numbers(text, "ranks", 'x')) {
    if (size < 1 || size > 65536)
      throw Error(Status::invalid_argument, "partition: --ranks is " + text + "; give 1 to 65,536, or nodes x ranks");
    sizes.push_back(static_cast<std::int32_t>(size));
  }
  if (sizes.size() > 2)
    throw Error(Status::invalid_argument, "partition: --ranks is \"" + text + "\"; give a number, or nodes x ranks");
  return sizes;
}

Mask load(const PartitionCommand& command) {
  const std::optional<NamedMask> one =
      read_mask(command.name, command.input, [&] { return build_mask(command.name, command.mask); });
  if (!one)
    throw Error(Status::invalid_argument,
                "partition: give one mask family, FILE.npy or --mask-png; see flashmask partition --help");
  if ((command.name.empty() || is_mask_file(command.name)) && !command.given.empty())
    throw Error(Status::invalid_argument, "partition: " + command.given.front() + " means nothing to " + one->name);
  return in_form(in_blocks(one->mask, command.input), command.input);
}

/// The largest of one number per rank, compared with the mean.
struct Spread {
  std::int64_t most = 0, sum = 0, ranks = 0;

  void add(std::int64_t value) {
    most = std::max(most, value);
    sum += value;
    ++ranks;
  }
  double over_mean() const {
    return sum == 0 ? 1 : static_cast<double>(most) * static_cast<double>(ranks) / static_cast<double>(sum);
  }
};

/// A division, and its results.
struct Result {
  std::string division;
  Partition partition;
  std::vector<RankLoad> loads;
  PredictedTime time;
  Spread tokens, work, columns;
  std::optional<Spread> pairs;
  std::int64_t moved = 0;          ///< columns sent or received by the busiest rank
  std::int64_t between_nodes = 0;  ///< the same, but only between nodes
};

std::optional<Spread> pairs_of(const Partition& partition, const Mask& mask, const std::vector<Need>& all) {
  if (partition.ranks() > kMostCountedRanks) return {};
  Spread pairs;
  for (std::int32_t rank = 0; rank < partition.ranks(); ++rank)
    pairs.add(explain(slice(mask, partition.spans(rank), local_columns(partition, all, rank))).visible_pairs);
  return pairs;
}

/// Columns that the busiest rank sends to, or receives from, other groups of `size` ranks.
std::int64_t most_moved(const std::vector<Need>& all, std::int32_t ranks, std::int32_t size) {
  std::vector<std::int64_t> sent(static_cast<std::size_t>(ranks)), received(static_cast<std::size_t>(ranks));
  for (const auto& [rank, owner, columns] : all) {
    if (rank / size == owner / size) continue;
    received[static_cast<std::size_t>(rank)] += columns.end - columns.begin;
    sent[static_cast<std::size_t>(owner)] += columns.end - columns.begin;
  }
  return std::max(std::ranges::max(sent), std::ranges::max(received));
}

Result result_of(const std::string& division, const Mask& mask, const std::vector<std::int32_t>& sizes,
                 const PartitionOptions& options) {
  const WeightedMask one{&mask, 1};
  Partition made = partition({&one, 1}, sizes, options);
  std::vector<RankLoad> of_ranks = loads(made, mask);
  const std::vector<Need> all = needs(made, mask);
  Result result{division, made, of_ranks, predict(of_ranks, mask.shape(), options), {}, {}, {}, {}};
  for (const RankLoad& load : of_ranks) {
    result.tokens.add(load.tokens);
    result.work.add(load.work());
    result.columns.add(load.column_tiles + 2 * load.row_tiles);
  }
  result.pairs = pairs_of(made, mask, all);
  result.moved = most_moved(all, made.ranks(), 1);
  if (sizes.size() == 2) result.between_nodes = most_moved(all, made.ranks(), sizes[1]);
  return result;
}

/// The division that was asked for, or all of them to compare.
std::vector<Result> results_of(const PartitionCommand& command, const Mask& mask,
                               const std::vector<std::int32_t>& sizes) {
  std::vector<Result> results;
  for (std::size_t i = 0; i < kDivisions.size(); ++i) {
    if (!command.division.empty() && command.division != kDivisions[i]) continue;
    PartitionOptions options = command.options;
    options.division = static_cast<Division>(i);
    results.push_back(result_of(kDivisions[i], mask, sizes, options));
  }
  return results;
}

/// Bytes of k and v in these columns, which a forward moves.
double forward_bytes(const PartitionOptions& options, std::int64_t columns) {
  return 2.0 * static_cast<double>(columns * options.kv_heads * options.head_dim * options.element_bytes);
}

/// Seconds on the wire between nodes, forward and backward.
double slow_wire(const PartitionCommand& command, const Result& result) {
  const PartitionOptions& o = command.options;
  const auto column = static_cast<double>(o.kv_heads * o.head_dim * (4 * o.element_bytes + 8));
  return static_cast<double>(result.between_nodes) * column / static_cast<double>(o.node_bytes_per_ns) * 1e-9;
}

double in_seconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

double share_of_ideal(const Result& result) {
  return result.time.total() == 0 ? 1
                                  : static_cast<double>(result.time.ideal) / static_cast<double>(result.time.total());
}

std::string text_of(const PartitionCommand& command, const std::vector<Result>& results, bool nodes) {
  using Align = Table::Align;
  Table table({Align::left, Align::right, Align::right, Align::right, Align::right, Align::right, Align::right,
               Align::right, Align::right, Align::right, Align::right, Align::right});
  std::vector<std::string> head = {"",     "tokens",   "work",      "columns", "pairs",
                                   "runs", "MB moved", "attention", "wire",    "of ideal"};
  if (nodes) head.insert(head.end(), {"MB between nodes", "slow wire"});
  table.add(head);
  for (const Result& one : results) {
    std::vector<std::string> line = {one.division,
                                     fixed(one.tokens.over_mean(), 2),
                                     fixed(one.work.over_mean(), 2),
                                     fixed(one.columns.over_mean(), 2),
                                     one.pairs ? fixed(one.pairs->over_mean(), 2) : "",
                                     with_commas(std::ssize(one.partition.runs())),
                                     fixed(forward_bytes(command.options, one.moved) * 1e-6, 1),
                                     seconds(in_seconds(one.time.attention)),
                                     seconds(in_seconds(one.time.wire)),
                                     percent(share_of_ideal(one))};
    if (nodes)
      line.insert(line.end(), {fixed(forward_bytes(command.options, one.between_nodes) * 1e-6, 1),
                               seconds(slow_wire(command, one))});
    table.add(line);
  }
  return table.text();
}

nlohmann::ordered_json json_of(const PartitionCommand& command, const Result& one) {
  nlohmann::ordered_json json = {{"division", one.division},
                                 {"why", one.partition.why()},
                                 {"aligned", one.partition.aligned()},
                                 {"tokens_max_over_mean", one.tokens.over_mean()},
                                 {"work_max_over_mean", one.work.over_mean()},
                                 {"columns_max_over_mean", one.columns.over_mean()}};
  if (one.pairs) json["pairs_max_over_mean"] = one.pairs->over_mean();
  json["moved_columns"] = one.moved;
  json["moved_forward_bytes"] = forward_bytes(command.options, one.moved);
  json["between_nodes_columns"] = one.between_nodes;
  json["slow_wire_seconds"] = slow_wire(command, one);
  json["attention_seconds"] = in_seconds(one.time.attention);
  json["wire_seconds"] = in_seconds(one.time.wire);
  json["ideal_seconds"] = in_seconds(one.time.ideal);
  json["share_of_ideal"] = share_of_ideal(one);
  for (const auto& [tokens, rank] : one.partition.runs()) json["runs"].push_back({tokens.begin, tokens.end, rank});
  for (const RankLoad& load : one.loads) {
    json["ranks"].push_back({{"tokens", load.tokens},
                             {"tiles", load.tiles},
                             {"row_tiles", load.row_tiles},
                             {"column_tiles", load.column_tiles},
                             {"received", load.received},
                             {"sent", load.sent}});
  }
  return json;
}

void print_json(const PartitionCommand& command, const Mask& mask, const std::vector<Result>& results,
                Console& console) {
  nlohmann::ordered_json json = {{"mask", mask.description()}, {"tokens", mask.shape().rows}, {"ranks", command.ranks}};
  for (const Result& one : results) json["divisions"].push_back(json_of(command, one));
  console.out << json.dump(2) << "\n";
}

void run(PartitionCommand& command, Console& console) {
  command.input.block = command.input.block_map ? command.mask.block : std::nullopt;
  command.options.flops_per_ns = command.tflops * 1000;
  command.options.exchange_ns = command.exchange_us * 1000;
  const std::vector<std::int32_t> sizes = sizes_of(command.ranks);
  const Mask mask = load(command);
  std::optional<OutputFile> png, svg;
  if (!command.png.empty()) png.emplace(command.png);
  if (!command.svg.empty()) svg.emplace(command.svg);
  const std::vector<Result> results = results_of(command, mask, sizes);
  const Partition& shown = results.front().partition;
  if (png) png->commit(PartitionPicture(mask, shown, kPictureCells).png());
  if (svg) svg->commit(PartitionPicture(mask, shown, kPictureCells).svg());
  if (command.json) return print_json(command, mask, results, console);
  if (command.picture) {
    const PartitionPicture picture(mask, shown, std::clamp(console.width, 8, console.colour ? 96 : 64));
    console.out << (console.colour ? picture.coloured() : picture.plain()) << "\n";
  }
  console.out << mask.description() << ", " << with_commas(shown.tokens()) << " tokens over "
              << with_commas(shown.ranks()) << " ranks; " << results.front().division << ": " << shown.why() << "\n"
              << "tokens, work, columns, pairs: the busiest rank over the mean; times forward and backward\n\n"
              << text_of(command, results, sizes.size() == 2);
}

}  // namespace

void add_partition(CLI::App& command, Console& console, int&) {
  Subcommand sub(command, "partition", "Share a sequence out over ranks and say what comes of it");
  const auto options = std::make_shared<PartitionCommand>();
  const std::string prices = "Prices";
  sub.option("mask,--mask", options->name, "A family, or FILE.npy: a dense mask, 1 = visible");
  sub.option("--ranks", options->ranks, "How many, or NODESxRANKS of a node, such as 8x8");
  sub.option("--division", options->division, "balanced, contiguous or zigzag [all]").one_of(kDivisions);
  sub.flag("--aligned", options->options.aligned, "Cut at tiles only, for the bits of one device");
  sub.option("--tile", options->options.tile, "Rows and columns of a tile").range(1, 65536).show_default();
  add_mask_options(sub, options->mask);
  add_mask_input_options(sub, options->input);
  add_form_option(sub, options->input);
  sub.option("--query-heads", options->options.query_heads, "Query heads").at_least(1).show_default().group(prices);
  sub.option("--kv-heads", options->options.kv_heads, "Key and value heads").at_least(1).show_default().group(prices);
  sub.option("--head-dim", options->options.head_dim, "Head dim").range(1, 512).show_default().group(prices);
  sub.option("--element-bytes", options->options.element_bytes, "Bytes of a number in k and v")
      .range(1, 8)
      .show_default()
      .group(prices);
  sub.option("--tflops", options->tflops, "TFLOP/s of a rank").at_least(1).show_default().group(prices);
  sub.option("--bandwidth", options->options.bytes_per_ns, "GB/s that a rank sends, and receives")
      .at_least(1)
      .show_default()
      .group(prices);
  sub.option("--node-bandwidth", options->options.node_bytes_per_ns, "The same to other nodes")
      .at_least(1)
      .show_default()
      .group(prices);
  sub.option("--exchange", options->exchange_us, "Microseconds of an exchange, however little it carries")
      .at_least(0)
      .show_default()
      .group(prices);
  sub.option("--png", options->png, "Also draw the first of them into this PNG file").ends_in(".png");
  sub.option("--svg", options->svg, "Also draw it into this SVG file").ends_in(".svg");
  sub.flag("--picture,!--no-picture", options->picture, "Draw it above the table [on]");
  sub.flag("--json", options->json, "Print all that is known as JSON, and no picture");
  sub.on_run([sub, options, &console] {
    options->given = sub.given_in(kFamilyGroup);
    run(*options, console);
  });
}

}  // namespace flashmask::cli
