// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/base/subcommand.h"
#include "flashmask/mask.h"

namespace flashmask::cli {

/// The options that a user may give for a mask; each family takes some of them and has defaults for the rest.
struct MaskArguments {
  std::optional<std::int64_t> tokens, columns, window, left, right, globals, prefix, block, buckets, heads;
  std::optional<std::uint64_t> seed;
  std::optional<std::string> documents;  ///< "4,3,3"; for shared_question "4:3:3,6:2:2", a question and its answers
  std::optional<std::string> prefixes, parents, lengths;  ///< "2,2,2"
  std::optional<std::string> spans;                       ///< "2:5,6:8", half-open ranges of tokens
  std::optional<std::int64_t> dilation, stride, summary, window_blocks, global_blocks, random_blocks;
  std::optional<std::string> positions, dropped, grid, kernel_size, candidates;  ///< "2,3,5"
  std::optional<std::string> sight;                                              ///< "ancestors" or "parent"
  std::optional<std::string> edges;                                              ///< "0:1,1:4", pairs of nodes
};

/// One mask family, as the command knows it.
struct MaskFamily {
  std::string name;
  std::string summary;
  std::vector<std::string> options;  ///< long names without dashes, --tokens left out: all families take it
  Mask (*build)(const MaskArguments& arguments);
};

/// All families, in the order of docs/masks.md.
const std::vector<MaskFamily>& mask_families();

/// Finds a family by name. Throws Status::invalid_argument with the nearest name and the list of all.
const MaskFamily& find_family(const std::string& name);

/// The help group of the options of mask families.
inline constexpr const char* kFamilyGroup = "Mask";

/// Adds the options of all families to a subcommand.
void add_mask_options(Subcommand& sub, MaskArguments& arguments);

/// Builds a mask of the named family. Throws Status::invalid_argument when an option is given that the family does not
/// take. Without --tokens, the tokens are the sum of the document lengths, or 32.
Mask build_mask(const std::string& name, const MaskArguments& arguments);

/// "4,3,3" → {4, 3, 3}. `option` is the name for the error message.
std::vector<std::int64_t> parse_numbers(const std::string& text, const std::string& option, char separator = ',');

}  // namespace flashmask::cli
