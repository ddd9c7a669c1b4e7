// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "flashmask/error.h"
#include "flashmask/mask.h"

/// How the mask tests look at a mask: score by score, against a predicate that is written down independently.
namespace flashmask::testing {

/// (rows, columns) with nothing, one, and both sides larger.
inline const std::vector<std::pair<std::int64_t, std::int64_t>> sizes = {
    {0, 0}, {0, 5}, {5, 0}, {1, 1}, {1, 9}, {9, 1}, {8, 8}, {13, 8}, {31, 64}, {64, 33}, {65, 65}};

/// Every score of one batch entry and head is what visible(row, column) says.
template <typename Visible>
void expect_visible(const Mask& mask, const Visible& visible, std::int64_t batch = 0, std::int64_t head = 0) {
  const MaskShape& shape = mask.shape();
  const std::vector<std::uint8_t> scores = expand(mask);
  const std::int64_t first_row = (batch * shape.heads + head) * shape.rows;
  for (std::int64_t i = 0; i < shape.rows; ++i) {
    for (std::int64_t j = 0; j < shape.columns; ++j) {
      const bool seen = scores[static_cast<std::size_t>((first_row + i) * shape.columns + j)] != 0;
      ASSERT_EQ(seen, visible(i, j)) << mask.description() << " of " << shape.rows << " x " << shape.columns << ", row "
                                     << i << ", column " << j << ", batch " << batch << ", head " << head;
    }
  }
}

/// The picture of docs/masks.md: '#' visible, '.' masked, row 0 on top.
inline std::string picture(const Mask& mask) {
  std::string text;
  for (std::int64_t i = 0; i < mask.shape().rows; ++i) {
    for (std::int64_t j = 0; j < mask.shape().columns; ++j) text += mask.visible(0, 0, i, j) ? '#' : '.';
    text += '\n';
  }
  return text;
}

/// The message of the error that a call throws.
template <typename Call>
std::string refusal(const Call& call, Status status = Status::invalid_argument) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), status) << error.what();
    return error.what();
  }
  return "no error";
}

/// Uniform in [low, high]; the same on every platform.
inline std::int64_t draw(std::mt19937_64& random, std::int64_t low, std::int64_t high) {
  return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
}

/// Lengths, some of them zero, that add up to at most `tokens`.
inline std::vector<std::int64_t> random_lengths(std::mt19937_64& random, std::int64_t tokens) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t left = tokens - draw(random, 0, tokens / 3); left > 0; left -= lengths.back()) {
    lengths.push_back(std::min(left, draw(random, 0, tokens / 4 + 1)));
  }
  return lengths;
}

/// The number of each token's document, or −1 in the padding.
inline std::vector<std::int64_t> owners(const std::vector<std::int64_t>& lengths, std::int64_t tokens) {
  std::vector<std::int64_t> owner;
  for (std::size_t k = 0; k < lengths.size(); ++k) {
    owner.insert(owner.end(), static_cast<std::size_t>(lengths[k]), static_cast<std::int64_t>(k));
  }
  owner.resize(static_cast<std::size_t>(tokens), -1);
  return owner;
}

/// Each token's place within its document.
inline std::vector<std::int64_t> places(const std::vector<std::int64_t>& lengths, std::int64_t tokens) {
  std::vector<std::int64_t> place;
  for (const std::int64_t length : lengths) {
    for (std::int64_t p = 0; p < length; ++p) place.push_back(p);
  }
  place.resize(static_cast<std::size_t>(tokens), -1);
  return place;
}

/// An array read with signed indices, as formulas write them.
class Table {
 public:
  explicit Table(std::vector<std::int64_t> values) : values_(std::move(values)) {}
  std::int64_t operator[](std::int64_t i) const { return values_[static_cast<std::size_t>(i)]; }

 private:
  std::vector<std::int64_t> values_;
};

}  // namespace flashmask::testing
