// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/checks.h"
#include "flashmask/mask.h"
#include "mask/cell_rows.h"
#include "mask/cell_words.h"

namespace flashmask {
namespace {

/// Writes one row of scores as words, bit c % 64 of word c / 64 for column c.
using PackRow = std::function<void(std::int64_t batch, std::int64_t head, std::int64_t row, std::uint64_t* words)>;

/// 64 rows of scores as words, and the AND and OR of each cell's rows. For masks that are known score by score.
class DenseCellRow {
 public:
  explicit DenseCellRow(std::int64_t columns)
      : columns_(columns),
        cells_(static_cast<std::size_t>((columns + kCellSize - 1) / kCellSize)),
        words_(cells_ * kCellSize),
        any_(cells_),
        all_(cells_) {}

  std::uint64_t* row(std::int64_t r) { return words_.data() + static_cast<std::size_t>(r) * cells_; }

  void drain(std::int64_t rows, CellRows& out) {
    summarise(rows);
    std::uint64_t cell[kCellSize];
    for (std::size_t c = 0; c < cells_; ++c) {
      const auto column = static_cast<std::int32_t>(c);
      if (any_[c] == 0) continue;
      if (all_[c] == low_bits(columns_ - std::int64_t{column} * kCellSize)) {
        out.add_full(column, column + 1);
        continue;
      }
      for (std::int64_t r = 0; r < kCellSize; ++r) cell[r] = r < rows ? row(r)[c] : 0;
      out.add_partial(column, cell);
    }
  }

 private:
  void summarise(std::int64_t rows) {
    std::fill(any_.begin(), any_.end(), 0);
    std::fill(all_.begin(), all_.end(), ~0ULL);
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::uint64_t* words = row(r);
      for (std::size_t c = 0; c < cells_; ++c) {
        any_[c] |= words[c];
        all_[c] &= words[c];
      }
    }
  }

  std::int64_t columns_;
  std::size_t cells_;
  std::vector<std::uint64_t> words_, any_, all_;
};

BitMask build_dense(const MaskShape& shape, Executor& executor, const PackRow& pack_row) {
  return build_bits(shape, executor, [&]() -> FillCells {
    return [&, cells = std::make_shared<DenseCellRow>(shape.columns)](std::int64_t batch, std::int64_t head,
                                                                      std::int64_t cell_row, CellRows& out) {
      const std::int64_t row0 = cell_row * kCellSize;
      const std::int64_t rows = std::min<std::int64_t>(kCellSize, shape.rows - row0);
      for (std::int64_t r = 0; r < rows; ++r) pack_row(batch, head, row0 + r, cells->row(r));
      cells->drain(rows, out);
    };
  });
}

constexpr std::uint64_t kOnes = 0x0101010101010101;  ///< eight bytes of 1

/// Eight bytes of 0 or 1 → eight bits.
std::uint64_t pack_ones(std::uint64_t bytes) { return bytes * 0x0102040810204080 >> 56; }

/// Eight bytes, each 0 or not → eight bytes of 0 or 1.
std::uint64_t to_ones(std::uint64_t bytes) {
  bytes |= bytes >> 4;
  bytes |= bytes >> 2;
  bytes |= bytes >> 1;
  return bytes & kOnes;
}

/// 64 bytes → a word. Most words are all zeros or all ones, and comparing is cheaper than packing.
std::uint64_t pack_word(const std::uint8_t* bytes) {
  std::uint64_t eight[8];
  std::memcpy(eight, bytes, sizeof(eight));
  std::uint64_t any = 0;
  std::uint64_t all = ~0ULL;
  for (const std::uint64_t b : eight) {
    any |= b;
    all &= b;
  }
  if (any == 0) return 0;
  if (all == kOnes && any == kOnes) return ~0ULL;
  if ((any & ~kOnes) != 0) {
    for (std::uint64_t& b : eight) b = to_ones(b);
  }
  std::uint64_t word = 0;
  for (int i = 0; i < 8; ++i) word |= pack_ones(eight[i]) << (8 * i);
  return word;
}

void pack_booleans(const std::uint8_t* scores, std::int64_t columns, std::uint64_t* words) {
  std::int64_t c = 0;
  for (; c + kCellSize <= columns; c += kCellSize) words[c / kCellSize] = pack_word(scores + c);
  if (c == columns) return;
  std::uint8_t rest[kCellSize] = {};
  std::copy(scores + c, scores + columns, rest);
  words[c / kCellSize] = pack_word(rest);
}

/// Packs visible(column) for each column of one row.
template <class Visible>
void pack_scores(std::int64_t columns, std::uint64_t* words, const Visible& visible) {
  for (std::int64_t c0 = 0; c0 < columns; c0 += kCellSize) {
    std::uint64_t word = 0;
    const std::int64_t end = std::min<std::int64_t>(kCellSize, columns - c0);
    for (std::int64_t c = 0; c < end; ++c) word |= std::uint64_t{visible(c0 + c)} << c;
    words[c0 / kCellSize] = word;
  }
}

[[noreturn]] void refuse_score(std::int64_t value, std::int64_t batch, std::int64_t head, std::int64_t row,
                               std::int64_t column) {
  refuse("from_dense: the score of batch " + grouped(batch) + ", head " + grouped(head) + ", row " + grouped(row) +
         ", column " + grouped(column) + " is " + grouped(value) + "; give 0 (masked) or 1 (visible)");
}

template <class Integer>
PackRow pack_integers(const DenseScores& scores) {
  return [scores](std::int64_t batch, std::int64_t head, std::int64_t row, std::uint64_t* words) {
    const auto& [b, h, r, c] = scores.strides;
    const Integer* line = static_cast<const Integer*>(scores.data) + batch * b + head * h + row * r;
    pack_scores(scores.shape.columns, words, [&, step = c](std::int64_t column) {
      const Integer value = line[column * step];
      if (value != 0 && value != 1) refuse_score(static_cast<std::int64_t>(value), batch, head, row, column);
      return value != 0;
    });
  };
}

PackRow pack_boolean_rows(const DenseScores& scores) {
  return [scores](std::int64_t batch, std::int64_t head, std::int64_t row, std::uint64_t* words) {
    const auto& [b, h, r, c] = scores.strides;
    const std::uint8_t* line = static_cast<const std::uint8_t*>(scores.data) + batch * b + head * h + row * r;
    if (c == 1) {
      pack_booleans(line, scores.shape.columns, words);
    } else {
      pack_scores(scores.shape.columns, words, [&, step = c](std::int64_t column) { return line[column * step] != 0; });
    }
  };
}

PackRow pack_rows(const DenseScores& scores) {
  switch (scores.type) {
    case DenseType::boolean:
      return pack_boolean_rows(scores);
    case DenseType::i8:
      return pack_integers<std::int8_t>(scores);
    case DenseType::i16:
      return pack_integers<std::int16_t>(scores);
    case DenseType::i32:
      return pack_integers<std::int32_t>(scores);
    case DenseType::i64:
      return pack_integers<std::int64_t>(scores);
  }
  refuse("from_dense: type " + grouped(static_cast<int>(scores.type)) + " is none of DenseType");
}

void check_count(const std::string& function, const std::string& argument, std::size_t given, std::size_t expected,
                 const std::string& extent, const std::string& unit) {
  if (given == expected) return;
  refuse(function + ": " + argument + " has " + counted(given, "value") + " but " + extent + " is " +
         grouped(static_cast<std::int64_t>(expected)) + "; give one value per " + unit);
}

}  // namespace

Mask from_dense(const DenseScores& scores, Executor& executor) {
  check_shape("from_dense", scores.shape);
  const MaskShape& shape = scores.shape;
  const std::size_t count = element_count("from_dense", {shape.batch, shape.heads, shape.rows, shape.columns});
  if (count != 0 && scores.data == nullptr) refuse("from_dense: data is null; give the scores");
  return {build_dense(shape, executor, pack_rows(scores)), "from_dense"};
}

Mask from_dense(const MaskShape& shape, std::span<const std::uint8_t> visible, Executor& executor) {
  check_shape("from_dense", shape);
  check_count("from_dense", "visible", visible.size(),
              element_count("from_dense", {shape.batch, shape.heads, shape.rows, shape.columns}),
              "batch x heads x rows x columns", "score");
  const std::int64_t head = shape.rows * shape.columns;
  return from_dense(
      DenseScores{visible.data(), DenseType::boolean, shape, {shape.heads * head, head, shape.columns, 1}}, executor);
}

Mask from_packed(const MaskShape& shape, std::span<const std::uint8_t> bits, Executor& executor) {
  check_shape("from_packed", shape);
  const std::int64_t row_bytes = (shape.columns + 7) / 8;
  check_count("from_packed", "bits", bits.size(),
              element_count("from_packed", {shape.batch, shape.heads, shape.rows, row_bytes}),
              "batch x heads x rows x ceil(columns / 8)", "byte");
  const auto pack_row = [&](std::int64_t batch, std::int64_t head, std::int64_t row, std::uint64_t* words) {
    const std::uint8_t* line = bits.data() + ((batch * shape.heads + head) * shape.rows + row) * row_bytes;
    for (std::int64_t c = 0; c < shape.columns; c += kCellSize) {
      std::uint64_t word = 0;
      for (std::int64_t i = c / 8; i < std::min(c / 8 + 8, row_bytes); ++i)
        word |= std::uint64_t{line[i]} << (8 * i - c);
      words[c / kCellSize] = word & low_bits(shape.columns - c);
    }
  };
  return {build_dense(shape, executor, pack_row), "from_packed"};
}

Mask from_predicate(const MaskShape& shape, const MaskPredicate& predicate, Executor& executor) {
  check_shape("from_predicate", shape);
  if (!predicate) refuse("from_predicate: the predicate is empty; give a function of (batch, head, row, column)");
  const auto pack_row = [&](std::int64_t batch, std::int64_t head, std::int64_t row, std::uint64_t* words) {
    pack_scores(shape.columns, words, [&](std::int64_t column) { return predicate(batch, head, row, column); });
  };
  return {build_dense(shape, executor, pack_row), "from_predicate"};
}

}  // namespace flashmask
