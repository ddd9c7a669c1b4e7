// SPDX-License-Identifier: Apache-2.0
#include "cli/masks/packing.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

namespace flashmask::cli {
namespace {

void place(PackedSequence& sequence, std::size_t document, std::int64_t length) {
  sequence.documents.push_back(document);
  sequence.tokens += length;
}

Packed pack_in_order(std::span<const std::int64_t> lengths, std::int64_t seqlen, std::int64_t sequences) {
  Packed packed{.sequences = {{}}};
  for (std::size_t document = 0; document < lengths.size(); ++document) {
    if (lengths[document] > seqlen) {
      ++packed.too_long;
      continue;
    }
    if (packed.sequences.back().tokens + lengths[document] > seqlen) {
      if (std::ssize(packed.sequences) == sequences) break;
      packed.sequences.emplace_back();
    }
    place(packed.sequences.back(), document, lengths[document]);
  }
  return packed;
}

/// Longest first; equal lengths keep their order, so that the result is the same everywhere.
std::vector<std::size_t> longest_first(std::span<const std::int64_t> lengths) {
  std::vector<std::size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t document) { return std::pair(-lengths[document], document); });
  return order;
}

Packed pack_best_fit(std::span<const std::int64_t> lengths, std::int64_t seqlen, std::int64_t sequences) {
  Packed packed{.sequences = {{}}};
  std::set<std::pair<std::int64_t, std::size_t>> room;  // (free tokens, sequence): the first that fits is the fullest
  room.emplace(seqlen, 0);
  for (const std::size_t document : longest_first(lengths)) {
    const std::int64_t length = lengths[document];
    auto fullest = room.lower_bound({length, 0});
    if (length > seqlen) {
      ++packed.too_long;
      continue;
    }
    if (fullest == room.end()) {
      if (std::ssize(packed.sequences) == sequences) continue;
      fullest = room.emplace(seqlen, packed.sequences.size()).first;
      packed.sequences.emplace_back();
    }
    const auto [free, sequence] = *fullest;
    room.erase(fullest);
    room.emplace(free - length, sequence);
    place(packed.sequences[sequence], document, length);
  }
  return packed;
}

}  // namespace

Packed pack(std::span<const std::int64_t> lengths, std::int64_t seqlen, std::int64_t sequences, Packing packing) {
  return packing == Packing::order ? pack_in_order(lengths, seqlen, sequences)
                                   : pack_best_fit(lengths, seqlen, sequences);
}

}  // namespace flashmask::cli
