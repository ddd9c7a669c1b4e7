// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/base/subcommand.h"
#include "flashmask/block_map.h"
#include "flashmask/mask.h"

namespace flashmask::cli {

/// Masks that come from files, and what is done to every mask of a subcommand.
struct MaskInput {
  std::optional<std::string> png, block_map, form;
  std::optional<std::int64_t> block, packed_columns;
};

/// A mask and what it is called in a table.
struct NamedMask {
  std::string name;
  Mask mask;
};

/// The group of help that they are in.
inline constexpr const char* kMaskFileGroup = "Mask files";

/// Adds --mask-png, --packed-columns, --block-map and --block. A subcommand that has --block keeps its own.
void add_mask_input_options(Subcommand& sub, MaskInput& input);
void add_form_option(Subcommand& sub, MaskInput& input);

/// Whether the value of --mask is a file and no name. Throws Status::invalid_argument where it is a file of another
/// kind.
bool is_mask_file(const std::string& name);

/// Builds the mask of a name that is no file. It has `rows` rows and columns, if they are known.
using BuildNamed = std::function<Mask(const std::string& name, std::optional<std::int64_t> rows)>;

/// The masks that `names` stand for, in order, and that of --mask-png last, before the block map and the form. Named
/// masks have the rows of the files unless `rows` says otherwise. Throws Status::invalid_argument on options that go
/// together with nothing that was given.
std::vector<NamedMask> read_masks(const std::vector<std::string>& names, const MaskInput& input,
                                  std::optional<std::int64_t> rows, const BuildNamed& build);

/// The block map of --block-map, if there is one, for so many rows and columns; nothing: for whole blocks.
std::optional<BlockMap> read_map(const MaskInput& input, std::optional<std::int64_t> rows,
                                 std::optional<std::int64_t> columns);

/// The mask inside the kept blocks of --block-map.
Mask in_blocks(const Mask& mask, const MaskInput& input);

/// The mask in the form of --form, if one was asked for.
Mask in_form(const Mask& mask, const MaskInput& input);

}  // namespace flashmask::cli
