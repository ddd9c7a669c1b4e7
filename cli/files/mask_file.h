// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "cli/files/npy.h"
#include "flashmask/block_map.h"
#include "flashmask/mask.h"

/// Masks and block maps from files. Any fault of a file is one flashmask::Error that begins with the file's name.
namespace flashmask::cli {

/// Reads a dense mask, 1 = visible: (rows, columns), (heads, rows, columns) or (batch, heads, rows, columns). With
/// `packed_columns`, each row holds that many columns as bits, packed by numpy.packbits(axis=-1, bitorder="little").
Mask read_mask_npy(const std::string& path, std::optional<std::int64_t> packed_columns);

/// Makes the mask from the bytes of the array, which are aligned to its elements.
Mask mask_from_npy(const NpyArray& array, std::span<const std::byte> data, std::optional<std::int64_t> packed_columns,
                   const std::string& name);

/// Reads a picture with one pixel per score, row 0 on top: black is masked, white is visible, other colours are errors.
Mask read_mask_png(const std::string& path);

/// Makes the mask from the bytes of the PNG file.
Mask mask_from_png(std::span<const std::byte> file, const std::string& name);

/// Reads a block map, 1 = keep, in the shapes of a dense mask. Without `rows` or `columns`, that side is whole blocks.
BlockMap read_block_map(const std::string& path, std::int64_t block, std::optional<std::int64_t> rows,
                        std::optional<std::int64_t> columns);

}  // namespace flashmask::cli
