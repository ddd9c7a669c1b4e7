// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "flashmask/executor.h"
#include "flashmask/mask_shape.h"
#include "flashmask/tensor.h"
#include "mask/formula/numbers.h"

/// A mask as a formula: conjunctions and disjunctions of comparisons of a number of the row with one of the column.
namespace flashmask {

enum class ConditionKind {
  conjunction,
  disjunction,
  less,  ///< the row's number is less than the column's
  less_equal,
  greater,
  greater_equal,
  equal,
  unequal,
  row_fact,     ///< the row's number, a boolean
  column_fact,  ///< the column's, a boolean
};

/// The conditions of a formula lie in prefix order: the parts of a conjunction follow it.
struct Condition {
  ConditionKind kind;
  int parts;  ///< of a conjunction or disjunction; at least 1
  TokenNumbers rows, columns;
};

/// Asks which rows of each column a formula shows, or hides.
struct Formula {
  std::vector<Condition> conditions;
  MaskShape shape;
  bool visible;  ///< whether ranges of visible rows are asked for, not of masked ones
  int slots;     ///< the most ranges of a column: 1 to kMostSlots
};

constexpr int kMostSlots = 32;

/// What is found beside ranges: the most ranges of any column, slots + 1 where some column has more, or one of these.
constexpr std::int32_t kSearchTooLong = 1 << 29;  ///< some column took too many steps
constexpr std::int32_t kNotANumber = 1 << 30;     ///< a comparison has NaN

/// Writes `ranges` [batch, heads, columns, 2 slots]: ascending, apart, begins and ends in turn, both the number of rows
/// where there is none. They hold anything where a column has more. Returns what is found, as above.
std::int32_t find_ranges(const Formula& formula, std::int32_t* ranges, Executor& executor);

/// Returns the bytes that find_ranges_on_gpu() takes. Throws Status::unsupported for formulas too long for a GPU.
std::size_t formula_workspace(const Formula& formula);

/// The same on a GPU, on a cudaStream_t, with ranges and numbers there; `found`: one number, there too. Does not wait.
void find_ranges_on_gpu(const Formula& formula, std::int32_t* ranges, std::int32_t* found, void* workspace,
                        Device device, void* stream);

}  // namespace flashmask
