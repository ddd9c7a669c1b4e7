// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "flashmask/builders.h"
#include "flashmask/mask.h"

namespace flashmask {

/// Documents in one sequence: none sees another. Row and column numbers of a document begin at its `row` and `column`.
struct Pack {
  struct Document {
    Mask mask;
    std::int64_t row, column;

    std::int64_t rows() const { return mask.shape().rows; }
    std::int64_t columns() const { return mask.shape().columns; }
    std::string name() const {
      return mask.description() + " of " + std::to_string(rows()) + " x " + std::to_string(columns()) + " at " +
             std::to_string(row);
    }
  };

  std::vector<Document> documents;
  std::int64_t rows = 0, columns = 0;

  void add(Mask mask) {
    const MaskShape shape = mask.shape();
    documents.push_back({std::move(mask), rows, columns});
    rows += shape.rows;
    columns += shape.columns;
  }

  /// Adds tokens that see themselves alone, of which each is a document of its own.
  void pad(std::int64_t tokens) {
    for (std::int64_t i = 0; i < tokens; ++i) add(masks::full(1, 1));
  }

  Mask whole() const {
    std::vector<std::size_t> of_row;
    for (std::size_t d = 0; d < documents.size(); ++d)
      of_row.insert(of_row.end(), static_cast<std::size_t>(documents[d].rows()), d);
    return from_predicate({1, 1, rows, columns},
                          [&](std::int64_t, std::int64_t, std::int64_t row, std::int64_t column) {
                            const Document& document = documents[of_row[static_cast<std::size_t>(row)]];
                            const std::int64_t inside = column - document.column;
                            return inside >= 0 && inside < document.columns() &&
                                   document.mask.lowered().visible(0, 0, row - document.row, inside);
                          });
  }
};

/// Random documents with what is hard in them: other lengths of rows and columns, rows that see nothing at either end,
/// columns that no row sees, single tokens, masks that need bits.
class RandomPacks {
 public:
  explicit RandomPacks(unsigned seed) : random_(seed) {}

  std::int64_t below(std::int64_t limit) { return std::uniform_int_distribution<std::int64_t>(0, limit - 1)(random_); }

  /// A mask of one document; only some fit intervals.
  Mask document(std::int64_t rows, std::int64_t columns, bool bits) {
    switch (below(bits ? 7 : 5)) {
      case 0:
        return masks::full(rows, columns);
      case 1:
        return masks::causal(rows, columns);
      case 2:
        return masks::window(rows, columns, 1 + below(90), below(30));
      case 3:
        return hidden(rows, columns, below(rows + 1), rows);
      case 4:
        return hidden(rows, columns, 0, below(rows + 1));
      case 5:
        return striped(rows, columns);
      default:
        return scattered(rows, columns);
    }
  }

  std::int64_t length() {
    const std::int64_t usual[] = {1, 63, 64, 65, 127, 128, 129, 200, 300};
    return below(3) == 0 ? usual[below(std::size(usual))] : 1 + below(250);
  }

  /// A document behind another of `before` tokens, and a third behind it that fills the pack to `tokens`.
  Pack around(const Mask& document, std::int64_t before, std::int64_t tokens, bool bits) {
    Pack pack;
    pack.add(this->document(before, before, bits));
    pack.add(document);
    pack.add(this->document(tokens - pack.rows, tokens - pack.columns, false));
    return pack;
  }

  Pack pack(std::int64_t tokens, bool square, bool bits) {
    Pack pack;
    while (pack.rows < tokens) {
      const std::int64_t rows = length();
      pack.add(document(rows, square ? rows : length(), bits));
      if (below(3) == 0) pack.pad(below(9));
    }
    return pack;
  }

 private:
  /// Causal, but rows outside [begin, end) see nothing.
  static Mask hidden(std::int64_t rows, std::int64_t columns, std::int64_t begin, std::int64_t end) {
    return from_predicate({1, 1, rows, columns}, [=](std::int64_t, std::int64_t, std::int64_t i, std::int64_t j) {
      return i >= begin && i < end && j <= i + columns - rows;
    });
  }

  static Mask striped(std::int64_t rows, std::int64_t columns) {
    return from_predicate({1, 1, rows, columns}, [](std::int64_t, std::int64_t, std::int64_t i, std::int64_t j) {
      return (i / 3 + j) % 5 == 0 || i == j;
    });
  }

  Mask scattered(std::int64_t rows, std::int64_t columns) {
    std::vector<VisiblePair> pairs;
    for (std::int64_t i = below(2 * rows + 1); i > 0; --i) pairs.push_back({below(rows), below(columns)});
    return from_pairs(rows, columns, pairs);
  }

  std::mt19937 random_;
};

}  // namespace flashmask
