// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "flashmask/bit_mask.h"
#include "flashmask/executor.h"
#include "flashmask/export.h"
#include "flashmask/interval_mask.h"
#include "flashmask/mask_shape.h"

namespace flashmask {

class BlockMap;

/// The exact form that schedules and kernels read, and why it is that form. A moved-from one has no form: only assign
/// to it or destroy it.
class FLASHMASK_API LoweredMask {
 public:
  /// `blocks`, if given, is ANDed onto the intervals; its blocks are whole tiles of every kernel.
  LoweredMask(std::shared_ptr<const IntervalMask> intervals, std::string why,
              std::shared_ptr<const BlockMap> blocks = nullptr);
  LoweredMask(std::shared_ptr<const BitMask> bits, std::string why);

  MaskForm form() const { return intervals_ ? MaskForm::intervals : MaskForm::bits; }
  const MaskShape& shape() const { return shape_; }
  const std::string& why() const { return why_; }

  /// Throws Status::invalid_argument where the form is bits.
  const IntervalMask& intervals() const;
  const std::shared_ptr<const IntervalMask>& shared_intervals() const { return intervals_; }
  /// nullptr: no block map.
  const BlockMap* blocks() const { return blocks_.get(); }
  /// Throws Status::invalid_argument where the form is intervals.
  const BitMask& bits() const;
  const std::shared_ptr<const BitMask>& shared_bits() const { return bits_; }

  /// Undefined outside shape(); Mask::visible() checks.
  bool visible(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) const;
  std::size_t memory_bytes() const;

 private:
  MaskShape shape_;
  std::shared_ptr<const IntervalMask> intervals_;
  std::shared_ptr<const BlockMap> blocks_;
  std::shared_ptr<const BitMask> bits_;
  std::string why_;
};

/// The first column, in (batch, head, column) order, that needs more than two masked row ranges.
struct Misfit {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t column = 0;
  std::int64_t ranges = 0;
};

/// A mask as the user describes it: which query row sees which key column. A cheap, immutable, device-free value, held
/// in its exact form from the start. A moved-from mask may only be assigned to or destroyed.
class FLASHMASK_API Mask {
 public:
  /// `description` is one line for people, such as "causal_document(3 documents)".
  Mask(IntervalMask intervals, std::string description);
  /// Switches to the interval form where every column fits it.
  Mask(BitMask bits, std::string description);
  /// From a form that was made already; `misfit` says why it is not intervals.
  Mask(LoweredMask lowered, std::string description, std::optional<Misfit> misfit = {});

  const MaskShape& shape() const { return lowered_.shape(); }
  const std::string& description() const { return description_; }
  const LoweredMask& lowered() const { return lowered_; }
  const std::optional<Misfit>& misfit() const { return misfit_; }

  /// Throws Status::invalid_argument outside shape().
  bool visible(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) const;

  /// A score is visible where both masks (&), or either (|), show it. Batch and heads of 1 are broadcast; rows and
  /// columns must agree.
  friend FLASHMASK_API Mask operator&(const Mask& a, const Mask& b);
  friend FLASHMASK_API Mask operator|(const Mask& a, const Mask& b);
  /// A score is visible where the mask hides it.
  friend FLASHMASK_API Mask operator~(const Mask& mask);

 private:
  std::optional<Misfit> misfit_;
  LoweredMask lowered_;
  std::string description_;
};

/// Returns the first misfit; nullopt where at most two masked ranges per column suffice.
FLASHMASK_API std::optional<Misfit> find_misfit(const Mask& mask);

/// Returns intervals where they are exact, else bits.
FLASHMASK_API LoweredMask lower(const Mask& mask);

/// Returns the requested form. Throws Status::unsupported, naming the first column that does not fit, where intervals
/// are requested and two per column do not suffice.
FLASHMASK_API LoweredMask lower(const Mask& mask, MaskForm form, Executor& executor = default_executor());

/// Returns dense booleans [batch, heads, rows, columns], 1 = visible.
FLASHMASK_API std::vector<std::uint8_t> expand(const Mask& mask);

/// Element type of a dense mask that the caller holds.
enum class DenseType : std::uint8_t {
  boolean,  ///< one byte, nonzero = visible
  i8,       ///< signed or unsigned; 0 or 1, like the wider types
  i16,
  i32,
  i64,
};

/// Dense scores [batch, heads, rows, columns] with any strides, in elements; 1 = visible. Batch and heads of 1 are
/// broadcast. The memory stays the caller's and is read once.
struct DenseScores {
  const void* data = nullptr;
  DenseType type = DenseType::boolean;
  MaskShape shape;
  std::array<std::int64_t, 4> strides{};
};

/// Builds the bits in parallel, in one pass over the scores. Throws Status::invalid_argument at the first integer that
/// is neither 0 nor 1.
FLASHMASK_API Mask from_dense(const DenseScores& scores, Executor& executor = default_executor());

/// Makes a mask from contiguous dense booleans [batch, heads, rows, columns], nonzero = visible.
FLASHMASK_API Mask from_dense(const MaskShape& shape, std::span<const std::uint8_t> visible,
                              Executor& executor = default_executor());

/// Makes a mask from bits [batch, heads, rows, ⌈columns / 8⌉], bit c % 8 of byte c / 8 for column c: what
/// numpy.packbits(axis=-1, bitorder="little") gives. Bits past the last column are ignored.
FLASHMASK_API Mask from_packed(const MaskShape& shape, std::span<const std::uint8_t> bits,
                               Executor& executor = default_executor());

/// Makes a mask from a predicate (batch, head, row, column) → visible: a pure function, called once per score by the
/// executor's workers, each of which takes 64 rows at a time. An exception that it throws is rethrown to the caller.
using MaskPredicate = std::function<bool(std::int64_t, std::int64_t, std::int64_t, std::int64_t)>;
FLASHMASK_API Mask from_predicate(const MaskShape& shape, const MaskPredicate& predicate,
                                  Executor& executor = default_executor());

/// A row and a column that it sees.
struct VisiblePair {
  std::int64_t row = 0;
  std::int64_t column = 0;
};

/// Makes a mask from the visible scores of one mask head, in any order; repeated pairs count once. Throws
/// Status::invalid_argument at the first pair that lies outside.
FLASHMASK_API Mask from_pairs(std::int64_t rows, std::int64_t columns, std::span<const VisiblePair> pairs,
                              Executor& executor = default_executor());

/// Makes a mask from compressed sparse rows: row i sees column_indices[offsets[i]] … column_indices[offsets[i + 1]).
/// Throws Status::invalid_argument at the first offset or column that is out of range.
FLASHMASK_API Mask from_csr(std::int64_t rows, std::int64_t columns, std::span<const std::int64_t> offsets,
                            std::span<const std::int64_t> column_indices, Executor& executor = default_executor());

/// Stacks one mask per batch entry, or per head; all have the same rows and columns (and the same heads, or batch).
FLASHMASK_API Mask stack_batch(std::span<const Mask> masks);
FLASHMASK_API Mask stack_heads(std::span<const Mask> masks);

FLASHMASK_API std::string to_string(MaskForm form);

}  // namespace flashmask
