// SPDX-License-Identifier: Apache-2.0
#include "cli/masks/mask_input.h"

#include <algorithm>
#include <filesystem>

#include "cli/files/mask_file.h"
#include "flashmask/error.h"

namespace flashmask::cli {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw Error(Status::invalid_argument, message); }

void check_companions(const std::string& name, const MaskInput& input) {
  if (!name.empty() && input.png) refuse(name + " and --mask-png; give one mask");
  if (input.packed_columns && (name.empty() || !is_mask_file(name))) {
    refuse("--packed-columns says how many columns a --mask FILE.npy of packed bits has; no such file was given");
  }
  if (input.block_map && !input.block) refuse("--block-map needs --block, the scores along a side of a block");
}

std::string file_name(const std::string& path) { return std::filesystem::path(path).filename().string(); }

}  // namespace

bool is_mask_file(const std::string& name) {
  if (name.ends_with(".npy")) return true;
  if (name.find_first_of("./") == std::string::npos) return false;
  refuse("--mask is \"" + name + "\"; expected the name of a mask, or a FILE.npy from numpy.save" +
         (name.ends_with(".png") ? "; a picture goes to --mask-png" : ""));
}

void add_mask_input_options(Subcommand& sub, MaskInput& input) {
  const std::string group = kMaskFileGroup;
  sub.option("--mask-png", input.png, "A mask from a picture: black is masked, white visible").group(group);
  sub.option("--packed-columns", input.packed_columns, "Columns of a FILE.npy of bits from numpy.packbits")
      .at_least(1)
      .group(group);
  sub.option("--block-map", input.block_map, "FILE.npy over blocks, 1 = keep: nothing is visible elsewhere")
      .group(group);
  if (!sub.has("--block")) {
    sub.option("--block", input.block, "Scores along a side of a block of --block-map").at_least(1).group(group);
  }
}

void add_form_option(Subcommand& sub, MaskInput& input) {
  sub.option("--form", input.form, "intervals or bits [intervals where they are exact]").one_of({"intervals", "bits"});
}

std::optional<NamedMask> read_mask(const std::string& name, const MaskInput& input, const BuildNamed& build) {
  check_companions(name, input);
  if (input.png) return NamedMask{file_name(*input.png), read_mask_png(*input.png)};
  if (name.empty()) return std::nullopt;
  if (is_mask_file(name)) return NamedMask{file_name(name), read_mask_npy(name, input.packed_columns)};
  return NamedMask{name, build()};
}

std::optional<BlockMap> read_map(const MaskInput& input, std::optional<std::int64_t> rows,
                                 std::optional<std::int64_t> columns) {
  if (input.block && !input.block_map) refuse("--block is the side of a block of --block-map, which was not given");
  if (!input.block_map) return std::nullopt;
  return read_block_map(*input.block_map, *input.block, rows, columns);
}

Mask in_blocks(const Mask& mask, const MaskInput& input) {
  const std::optional<BlockMap> map = read_map(input, mask.shape().rows, mask.shape().columns);
  return map ? mask & *map : mask;
}

Mask in_form(const Mask& mask, const MaskInput& input) {
  if (!input.form) return mask;
  const MaskForm form = *input.form == "bits" ? MaskForm::bits : MaskForm::intervals;
  return {lower(mask, form), mask.description(), mask.misfit()};
}

}  // namespace flashmask::cli
