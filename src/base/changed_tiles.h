// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace flashmask {

/// A set of tile indices, filled in any order and drained in ascending order. Two levels of bits: the cost of draining
/// is one step per index held and one word per 4,096 tiles, not one step per tile.
class ChangedTiles {
 public:
  explicit ChangedTiles(std::int64_t tiles)
      : bits_(static_cast<std::size_t>(tiles / 64 + 1)), words_(static_cast<std::size_t>(tiles / 4096 + 1)) {}

  void insert(std::uint32_t tile) {
    bits_[tile / 64] |= std::uint64_t{1} << tile % 64;
    words_[tile / 4096] |= std::uint64_t{1} << tile / 64 % 64;
  }

  /// Calls body(tile) for each tile held, smallest first, and leaves the set empty.
  template <class Body>
  void drain(const Body& body) {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      drain_word(words_[i], [&](std::size_t j) {
        const std::size_t word = i * 64 + j;
        drain_word(bits_[word], [&](std::size_t k) { body(word * 64 + k); });
      });
    }
  }

 private:
  template <class Body>
  static void drain_word(std::uint64_t& word, const Body& body) {
    for (; word != 0; word &= word - 1) body(static_cast<std::size_t>(std::countr_zero(word)));
  }

  std::vector<std::uint64_t> bits_;   ///< one bit per tile
  std::vector<std::uint64_t> words_;  ///< one bit per word of bits_: whether it is not 0
};

}  // namespace flashmask
