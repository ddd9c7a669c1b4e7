// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/base/memory_limit.h"
#include "cli/base/quantities.h"
#include "cli/base/table.h"
#include "cli/commands/dropout_options.h"
#include "cli/commands/reordering.h"
#include "cli/commands/subcommands.h"
#include "cli/files/output_file.h"
#include "cli/masks/mask_arguments.h"
#include "cli/masks/mask_input.h"
#include "cli/pictures/mask_picture.h"
#include "cli/pictures/terminal_picture.h"
#include "flashmask/error.h"
#include "flashmask/explain.h"

namespace flashmask::cli {
namespace {

struct ShowOptions {
  std::string name;  ///< a family or a file; empty: the mask comes from elsewhere
  MaskArguments mask;
  std::vector<std::string> given;  ///< options that families take, with dashes
  MaskInput input;
  DropoutOptions dropout;
  bool reorder = false;
  bool invariant = false;
  std::int64_t batch = 0, head = 0;
  std::optional<std::int32_t> tile;
  std::string png, svg;
  bool explain = true, json = false;
};

std::string family_list() {
  Table table({Table::Align::left, Table::Align::left, Table::Align::left});
  for (const MaskFamily& family : mask_families()) {
    std::string options;
    for (const std::string& option : family.options) options += "--" + option + " ";
    table.add({"  " + family.name, family.summary, options});
  }
  return "Families (all take --tokens):\n" + table.text();
}

/// A tile small enough to show something: a picture of a single tile says nothing about skipping.
std::int32_t usual_tile(const MaskShape& shape) {
  const std::int64_t longer = std::max(shape.rows, shape.columns);
  return longer <= 64 ? 4 : longer <= 512 ? 16 : 64;
}

TileShape tile_of(const ShowOptions& options, const MaskShape& shape) {
  const std::int32_t side = options.tile.value_or(usual_tile(shape));
  return {side, side};
}

void check_index(const char* option, std::int64_t given, std::int64_t size, const char* axis) {
  if (given < size) return;
  throw Error(Status::invalid_argument, std::string("show: ") + option + " is " + std::to_string(given) +
                                            "; the mask has " + axis + " 0 to " + std::to_string(size - 1));
}

void check_shown(const ShowOptions& options, const MaskShape& shape) {
  check_index("--batch", options.batch, shape.batch, "batch entries");
  check_index("--head", options.head, shape.heads, "heads");
}

/// Refuses options of mask families where the mask is already given.
void check_given(const ShowOptions& options, const std::string& source, const std::vector<std::string>& allowed) {
  for (const std::string& option : options.given) {
    if (std::find(allowed.begin(), allowed.end(), option) != allowed.end()) continue;
    throw Error(Status::invalid_argument, "show: " + option + " means nothing to " + source);
  }
}

bool takes(const std::string& family, const std::string& option) {
  const std::vector<std::string>& options = find_family(family).options;
  return std::find(options.begin(), options.end(), option) != options.end();
}

/// Drops --block and --seed if the family does not take them and they belong to --block-map and --dropout.
Mask build_family(const ShowOptions& options) {
  MaskArguments arguments = options.mask;
  if (options.input.block_map && !takes(options.name, "block")) arguments.block.reset();
  if (options.dropout.given() && !takes(options.name, "seed")) arguments.seed.reset();
  return build_mask(options.name, arguments);
}

/// A mask made from the block map alone.
Mask map_alone(const ShowOptions& options) {
  check_given(options, "a block map", {"--block", "--tokens", "--columns", "--seed"});
  const std::optional<std::int64_t>& rows = options.mask.tokens;
  return from_block_map(*read_map(options.input, rows, options.mask.columns ? options.mask.columns : rows));
}

/// The one mask that was named, or that is in a file.
Mask load_one(const ShowOptions& options) {
  const std::optional<NamedMask> one = read_mask(options.name, options.input, [&] { return build_family(options); });
  if (!one && options.input.block_map) return map_alone(options);
  if (!one) {
    throw Error(Status::invalid_argument,
                "show: give a mask family, a FILE.npy, --mask-png or --block-map; see flashmask show --help");
  }
  const bool family = !options.name.empty() && !is_mask_file(options.name);
  if (!family) {
    std::vector<std::string> allowed;
    if (options.input.block_map) allowed.emplace_back("--block");
    if (options.dropout.given()) allowed.emplace_back("--seed");
    check_given(options, one->name, allowed);
  }
  return in_blocks(one->mask, options.input);
}

Mask load(ShowOptions& options) {
  options.input.block = options.input.block_map ? options.mask.block : std::nullopt;
  return in_form(load_one(options), options.input);
}

std::uint64_t seed_of(const ShowOptions& options) { return options.mask.seed.value_or(1); }

/// The scores that survive dropout, if every mask head serves one query head.
Mask surviving(const ShowOptions& options, const Mask& mask) {
  const MaskShape& shape = mask.shape();
  Problem problem;
  problem.batch = shape.batch;
  problem.query_heads = problem.kv_heads = shape.heads;
  problem.query_length = shape.rows;
  problem.key_length = shape.columns;
  problem.head_dim = problem.value_dim = 1;
  problem.dropout = options.dropout.probability;
  const double scores = static_cast<double>(shape.batch * shape.heads) * static_cast<double>(shape.rows) *
                        static_cast<double>(shape.columns);
  check_memory(2 * scores, "drawing dropout", "give fewer --tokens");
  const Mask kept = mask & from_dense(shape, expand_dropout(problem, options.dropout.state(seed_of(options))));
  return {kept.lowered(), mask.description() + " after dropout", kept.misfit()};
}

/// Cells that a terminal shows per line without wrapping, limited to a square that fits a screen.
std::int64_t most_cells(const Console& console) { return std::clamp(console.width, 8, console.colour ? 96 : 64); }

void show_in_terminal(const ShowOptions& options, const Mask& mask, Console& console) {
  const MaskShape& shape = mask.shape();
  const TileSchedule tiles = schedule(mask.lowered(), tile_of(options, shape));
  const MaskRaster raster =
      rasterise(mask.lowered(), tiles, {options.batch, options.head, shape.rows, shape.columns, most_cells(console)});
  console.out << (console.colour ? coloured_picture(raster) + coloured_legend() : plain_picture(raster)) << "\n";
}

nlohmann::ordered_json json_of(const Explanation& e) {
  return {{"mask", e.description},
          {"batch", e.shape.batch},
          {"heads", e.shape.heads},
          {"rows", e.shape.rows},
          {"columns", e.shape.columns},
          {"form", to_string(e.form)},
          {"why", e.why},
          {"visible_pairs", e.visible_pairs},
          {"density", e.density},
          {"tile", {e.tile.rows, e.tile.columns}},
          {"invariant", e.invariant},
          {"tiles", {{"skip", e.tiles.skip}, {"partial", e.tiles.partial}, {"full", e.tiles.full}}},
          {"waste", e.waste},
          {"empty_rows", e.empty_rows},
          {"mask_bytes", e.mask_bytes},
          {"schedule_bytes", e.schedule_bytes},
          {"dense_bytes", e.dense_bytes}};
}

/// Opened before anything is printed, so that for a path that cannot be written the error is the only output.
struct PictureFiles {
  explicit PictureFiles(const ShowOptions& options) {
    if (!options.png.empty()) png.emplace(options.png);
    if (!options.svg.empty()) svg.emplace(options.svg);
  }

  void draw(const ShowOptions& options, const Mask& mask) {
    if (!png && !svg) return;
    const MaskPicture picture(mask, tile_of(options, mask.shape()), options.batch, options.head);
    if (png) png->commit(picture.png());
    if (svg) svg->commit(picture.svg());
  }

  std::optional<OutputFile> png, svg;
};

/// The facts printed below the picture, or instead of it.
struct Facts {
  Explanation mask;
  std::optional<ReorderReport> reordering;
  std::optional<std::int64_t> dropped;  ///< visible scores that dropout drops

  std::string text(const ShowOptions& options) const {
    std::string text = to_string(mask);
    if (reordering) text += "reordering         " + to_text(*reordering) + "\n";
    if (dropped) {
      text += "dropout            " + to_text(options.dropout.probability, options.dropout.state(seed_of(options))) +
              ": " + with_commas(*dropped) + " of the visible pairs dropped\n";
    }
    return text;
  }

  nlohmann::ordered_json json(const ShowOptions& options) const {
    nlohmann::ordered_json json = json_of(mask);
    if (reordering) json["reordering"] = to_json(*reordering);
    if (dropped) {
      json["dropout"] = to_json(options.dropout.probability, options.dropout.state(seed_of(options)));
      json["dropout"]["dropped_pairs"] = *dropped;
    }
    return json;
  }
};

void show(ShowOptions options, Console& console) {
  check_one_plan("show", options.reorder, options.invariant, options.dropout);
  Mask mask = load(options);
  check_shown(options, mask.shape());
  PictureFiles files(options);
  Facts facts;
  if (options.reorder) {
    Reordering reordering = reorder(mask, tile_of(options, mask.shape()));
    facts.reordering = report_of(reordering);
    mask = std::move(reordering.mask);
  }
  facts.mask = explain(mask, tile_of(options, mask.shape()), options.invariant);
  if (options.dropout.given()) {
    mask = surviving(options, mask);
    facts.dropped = facts.mask.visible_pairs - explain(mask).visible_pairs;
  }
  files.draw(options, mask);
  if (options.json) {
    console.out << facts.json(options).dump(2) << "\n";
    return;
  }
  show_in_terminal(options, mask, console);
  if (options.explain) console.out << facts.text(options);
}

}  // namespace

void add_show(CLI::App& command, Console& console, int&) {
  Subcommand sub(command, "show", "Draw a mask and say what it costs");
  const auto options = std::make_shared<ShowOptions>();
  sub.option("mask,--mask", options->name, "A family, or FILE.npy: a dense mask, 1 = visible");
  add_mask_options(sub, options->mask);
  add_mask_input_options(sub, options->input);
  add_form_option(sub, options->input);
  add_dropout_options(sub, options->dropout);
  sub.flag("--reorder", options->reorder, "Draw the mask in an order with fewer tiles, if there is one");
  sub.flag("--invariant", options->invariant, "Count tiles that begin where documents begin, too");
  sub.option("--batch", options->batch, "The batch entry to draw [0]").at_least(0);
  sub.option("--head", options->head, "The mask head to draw [0]").at_least(0);
  sub.option("--tile", options->tile, "Rows and columns of a tile [4 to 64, by size]").range(1, 65536);
  sub.flag("--explain,!--no-explain", options->explain, "Print the table below the picture [on]");
  sub.option("--png", options->png, "Also draw it into this PNG file").ends_in(".png");
  sub.option("--svg", options->svg, "Also draw it into this SVG file").ends_in(".svg");
  sub.flag("--json", options->json, "Print the table as JSON, and no picture");
  sub.footer(family_list());
  sub.on_run([sub, options, &console] {
    options->given = sub.given_in(kFamilyGroup);
    show(*options, console);
  });
}

}  // namespace flashmask::cli
