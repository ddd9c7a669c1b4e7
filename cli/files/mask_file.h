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

/// Masks and block maps from files. Whatever is wrong with a file is one flashmask::Error that begins with its name.
namespace flashmask::cli {

/// A dense mask, 1 = visible: (rows, columns), (heads, rows, columns) or (batch, heads, rows, columns). With
/// `packed_columns`, so many columns a row as bits, as numpy.packbits(axis=-1, bitorder="little") packs them.
Mask read_mask_npy(const std::string& path, std::optional<std::int64_t> packed_columns);

/// The same from the bytes of the array, aligned to its elements.
Mask mask_from_npy(const NpyArray& array, std::span<const std::byte> data, std::optional<std::int64_t> packed_columns,
                   const std::string& name);

/// A picture with a pixel a score, row 0 on top: black is masked, white visible, and nothing else is there.
Mask read_mask_png(const std::string& path);

/// The same from the file's bytes.
Mask mask_from_png(std::span<const std::byte> file, const std::string& name);

/// A map over blocks, 1 = keep, in the shapes of a dense mask. Without `rows` or `columns`, the scores are whole
/// blocks.
BlockMap read_block_map(const std::string& path, std::int64_t block, std::optional<std::int64_t> rows,
                        std::optional<std::int64_t> columns);

}  // namespace flashmask::cli
