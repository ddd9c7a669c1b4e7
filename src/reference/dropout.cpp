// SPDX-License-Identifier: Apache-2.0
#include "flashmask/dropout.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "base/checks.h"
#include "base/philox.h"
#include "plan/dropout.h"

namespace flashmask {
namespace {

using Block = std::array<std::uint32_t, 4>;

/// Philox as Salmon et al. (2011) define it.
Block draw(Block counter, std::uint64_t seed) {
  auto key0 = static_cast<std::uint32_t>(seed);
  auto key1 = static_cast<std::uint32_t>(seed >> 32);
  for (std::uint32_t round = 0; round < philox::kRounds;
       ++round, key0 += philox::kKeyStep0, key1 += philox::kKeyStep1) {
    const std::uint64_t a = std::uint64_t{philox::kFactor0} * counter[0];
    const std::uint64_t b = std::uint64_t{philox::kFactor2} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key1, static_cast<std::uint32_t>(a)};
  }
  return counter;
}

/// Returns the number that eight rows or columns have in the larger problem; `eights` null: the same number.
std::int64_t eight_in(const std::int32_t* eights, std::int64_t eight) {
  return eights == nullptr ? eight : eights[eight];
}

/// Draws one row; rows are counted through batch entries and query heads.
void draw_row(const Problem& problem, const DropoutState& state, const DropoutTables& place, std::int64_t row,
              std::uint8_t* kept) {
  const std::uint32_t threshold = dropout_threshold(problem.dropout);
  const std::int64_t query_head = row / problem.query_length, query = row % problem.query_length;
  const std::uint32_t head = place.head(problem, query_head / problem.query_heads, query_head % problem.query_heads);
  const auto drawn_row = static_cast<std::uint32_t>(eight_in(place.row_eights, query / 8) * 8 + query % 8);
  for (std::int64_t column = 0; column < problem.key_length; ++column) {
    const auto eight = static_cast<std::uint32_t>(eight_in(place.column_eights, column / 8));
    const Block numbers = draw({eight, drawn_row, head, static_cast<std::uint32_t>(state.offset)}, state.seed);
    const std::uint32_t number = numbers[static_cast<std::size_t>(column % 8 / 2)] >> (column % 2 * 16) & 0xffff;
    kept[column] = number >= threshold ? 1 : 0;
  }
}

void require_index(const char* axis, std::int64_t given, std::int64_t size) {
  if (given >= 0 && given < size) return;
  refuse("expand_dropout: " + std::string(axis) + " is " + grouped(given) + " but the problem has " + grouped(size) +
         "; give an index from 0 to below that");
}

}  // namespace

std::vector<std::uint8_t> expand_dropout(const Problem& problem, const DropoutState& state,
                                         std::span<const std::int32_t> place) {
  validate(problem);
  check_dropout("expand_dropout", problem, state, place);
  const DropoutTables tables = dropout_tables(problem, place);
  const std::int64_t rows = problem.batch * problem.query_heads * problem.query_length;
  auto kept = zeros<std::uint8_t>(
      "expand_dropout",
      element_count("expand_dropout", {problem.batch, problem.query_heads, problem.query_length, problem.key_length}));
  for (std::int64_t row = 0; row < rows; ++row)
    draw_row(problem, state, tables, row, kept.data() + row * problem.key_length);
  return kept;
}

std::vector<std::uint8_t> expand_dropout(const Problem& problem, const DropoutState& state, std::int64_t batch,
                                         std::int64_t head, std::int64_t row, std::span<const std::int32_t> place) {
  validate(problem);
  check_dropout("expand_dropout", problem, state, place);
  require_index("batch", batch, problem.batch);
  require_index("head", head, problem.query_heads);
  require_index("row", row, problem.query_length);
  std::vector<std::uint8_t> kept(static_cast<std::size_t>(problem.key_length));
  draw_row(problem, state, dropout_tables(problem, place),
           (batch * problem.query_heads + head) * problem.query_length + row, kept.data());
  return kept;
}

std::vector<double> dropout_factors(const Problem& problem, const DropoutState& state,
                                    std::span<const std::int32_t> place) {
  if (problem.dropout == 0) return {};
  const std::vector<std::uint8_t> kept = expand_dropout(problem, state, place);
  const double scale = dropout_scale(problem.dropout);
  auto factors = zeros<double>("dropout_factors", kept.size());
  std::ranges::transform(kept, factors.begin(), [scale](std::uint8_t one) { return one != 0 ? scale : 0; });
  return factors;
}

}  // namespace flashmask
