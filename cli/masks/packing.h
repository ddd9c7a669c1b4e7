// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace flashmask::cli {

enum class Packing : std::uint8_t {
  order,     ///< documents in the given order; a sequence ends at the first one that does not fit
  best_fit,  ///< longest first, each into the fullest sequence with room for it
};

/// Documents that share one sequence, as indices into the lengths; padding follows them.
struct PackedSequence {
  std::vector<std::size_t> documents;
  std::int64_t tokens = 0;
};

struct Packed {
  std::vector<PackedSequence> sequences;
  std::int64_t too_long = 0;  ///< documents met that are longer than a sequence and therefore left out
};

/// Fills at most `sequences` sequences of `seqlen` tokens. Documents are kept whole; those that do not fit are left
/// out. Returns at least one sequence.
Packed pack(std::span<const std::int64_t> lengths, std::int64_t seqlen, std::int64_t sequences, Packing packing);

}  // namespace flashmask::cli
