// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "cli/base/subcommand.h"
#include "flashmask/block_map.h"
#include "flashmask/mask.h"

namespace flashmask::cli {

/// Options for masks that come from files, and for what is applied to every mask of a subcommand.
struct MaskInput {
  std::optional<std::string> png, block_map, form;
  std::optional<std::int64_t> block, packed_columns;
};

/// A mask and its name in messages.
struct NamedMask {
  std::string name;
  Mask mask;
};

/// The help group of these options.
inline constexpr const char* kMaskFileGroup = "Mask files";

/// Adds --mask-png, --packed-columns, --block-map and --block; a subcommand that already has --block keeps its own.
void add_mask_input_options(Subcommand& sub, MaskInput& input);
void add_form_option(Subcommand& sub, MaskInput& input);

/// Whether the value of --mask is a file rather than a name. Throws Status::invalid_argument for a file of another
/// kind.
bool is_mask_file(const std::string& name);

/// Builds the mask of a name that is no file.
using BuildNamed = std::function<Mask()>;

/// The mask that `name` or --mask-png stands for, without block map and form applied; none where both are empty.
/// `build` makes that of a name. Throws Status::invalid_argument for both, and for options that apply to nothing that
/// was given.
std::optional<NamedMask> read_mask(const std::string& name, const MaskInput& input, const BuildNamed& build);

/// The block map of --block-map, if there is one, for this many rows and columns; without them, for whole blocks.
std::optional<BlockMap> read_map(const MaskInput& input, std::optional<std::int64_t> rows,
                                 std::optional<std::int64_t> columns);

/// The mask ANDed with --block-map, if one was given.
Mask in_blocks(const Mask& mask, const MaskInput& input);

/// The mask in the form that --form asks for, if any.
Mask in_form(const Mask& mask, const MaskInput& input);

}  // namespace flashmask::cli
