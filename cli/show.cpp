#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "flashmask/error.h"
#include "flashmask/explain.h"
#include "mask_arguments.h"
#include "mask_picture.h"
#include "output_file.h"
#include "subcommands.h"
#include "table.h"
#include "terminal_picture.h"

namespace flashmask::cli {
namespace {

struct ShowOptions {
  std::string family;
  MaskArguments mask;
  std::int64_t head = 0;
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

/// A tile that shows: a picture of a single tile says nothing about skipping.
std::int32_t usual_tile(const MaskShape& shape) {
  const std::int64_t longer = std::max(shape.rows, shape.columns);
  return longer <= 64 ? 4 : longer <= 512 ? 16 : 64;
}

TileShape tile_of(const ShowOptions& options, const MaskShape& shape) {
  const std::int32_t side = options.tile.value_or(usual_tile(shape));
  return {side, side};
}

void check_head(const ShowOptions& options, const MaskShape& shape) {
  if (options.head < shape.heads) return;
  throw Error(Status::invalid_argument, "show: --head is " + std::to_string(options.head) +
                                            "; the mask has heads 0 to " + std::to_string(shape.heads - 1));
}

/// As wide as a terminal shows without wrapping, in a square that fits a screen.
std::int64_t most_cells(const Console& console) { return std::clamp(console.width, 8, console.colour ? 96 : 64); }

void show_in_terminal(const ShowOptions& options, const Mask& mask, Console& console) {
  const LoweredMask lowered = lower(mask);
  const MaskShape& shape = mask.shape();
  const TileSchedule tiles = schedule(lowered, tile_of(options, shape));
  const MaskRaster raster =
      rasterise(lowered.intervals(), tiles, {0, options.head, shape.rows, shape.columns, most_cells(console)});
  console.out << (console.colour ? coloured_picture(raster) + coloured_legend() : plain_picture(raster)) << "\n";
}

nlohmann::ordered_json json_of(const Explanation& e) {
  return {{"mask", e.description},
          {"batch", e.shape.batch},
          {"heads", e.shape.heads},
          {"rows", e.shape.rows},
          {"columns", e.shape.columns},
          {"form", to_string(e.form)},
          {"visible_pairs", e.visible_pairs},
          {"density", e.density},
          {"tile", {e.tile.rows, e.tile.columns}},
          {"tiles", {{"skip", e.tiles.skip}, {"partial", e.tiles.partial}, {"full", e.tiles.full}}},
          {"waste", e.waste},
          {"empty_rows", e.empty_rows},
          {"mask_bytes", e.mask_bytes},
          {"schedule_bytes", e.schedule_bytes},
          {"dense_bytes", e.dense_bytes}};
}

/// Opened before anything is printed, so that a path that cannot be written is the only message.
struct PictureFiles {
  explicit PictureFiles(const ShowOptions& options) {
    if (!options.png.empty()) png.emplace(options.png);
    if (!options.svg.empty()) svg.emplace(options.svg);
  }

  void draw(const ShowOptions& options, const Mask& mask) {
    if (!png && !svg) return;
    const MaskPicture picture(mask, tile_of(options, mask.shape()), 0, options.head);
    if (png) png->commit(picture.png());
    if (svg) svg->commit(picture.svg());
  }

  std::optional<OutputFile> png, svg;
};

void show(const ShowOptions& options, Console& console) {
  const Mask mask = build_mask(options.family, options.mask);
  check_head(options, mask.shape());
  PictureFiles files(options);
  const Explanation explanation = explain(mask, tile_of(options, mask.shape()));
  files.draw(options, mask);
  if (options.json) {
    console.out << json_of(explanation).dump(2) << "\n";
    return;
  }
  show_in_terminal(options, mask, console);
  if (options.explain) console.out << to_string(explanation);
}

}  // namespace

void add_show(CLI::App& app, Console& console, int&) {
  CLI::App* sub = app.add_subcommand("show", "Draw a mask and say what it costs");
  const auto options = std::make_shared<ShowOptions>();
  sub->add_option("family", options->family, "Which mask")->required();
  add_mask_options(*sub, options->mask);
  sub->add_option("--head", options->head, "The mask head to draw")->check(CLI::NonNegativeNumber);
  sub->add_option("--tile", options->tile, "Rows and columns of a tile [4 to 64, by size]")
      ->check(CLI::Range(1, 65536));
  sub->add_flag("--explain,!--no-explain", options->explain, "Print the table below the picture [on]");
  sub->add_option("--png", options->png, "Also draw it into this PNG file");
  sub->add_option("--svg", options->svg, "Also draw it into this SVG file");
  sub->add_flag("--json", options->json, "Print the table as JSON, and no picture");
  sub->footer(family_list());
  sub->callback([options, &console] { show(*options, console); });
}

}  // namespace flashmask::cli
