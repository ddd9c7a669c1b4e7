#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "flashmask/export.h"
#include "flashmask/interval_mask.h"

namespace flashmask {

class MaskSource;

/// Which exact form a mask was lowered to; also the predicate of a kernel that reads partial tiles of that form.
enum class MaskForm : std::uint8_t {
  intervals,  ///< at most two masked row ranges a column
  bits,       ///< one bit a score, in partial tiles only
};

/// What the user describes: which query row sees which key column. A cheap, immutable, device-free value.
class FLASHMASK_API Mask {
 public:
  /// `description` is one line for people, such as "causal_document(3 documents)".
  Mask(const MaskShape& shape, std::shared_ptr<const MaskSource> source, std::string description);

  const MaskShape& shape() const { return shape_; }
  const std::string& description() const { return description_; }
  const MaskSource& source() const { return *source_; }

  bool visible(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) const;

  /// A score is visible where both (either) masks see it. Batch and heads of 1 are broadcast; rows and columns agree.
  friend FLASHMASK_API Mask operator&(const Mask& a, const Mask& b);
  friend FLASHMASK_API Mask operator|(const Mask& a, const Mask& b);

 private:
  MaskShape shape_;
  std::shared_ptr<const MaskSource> source_;
  std::string description_;
};

/// The first column, in (batch, head, column) order, that needs more than two masked row ranges.
struct Misfit {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t column = 0;
  std::int64_t ranges = 0;
};

/// The exact form that schedules and kernels read, and why it is that form.
class FLASHMASK_API LoweredMask {
 public:
  LoweredMask(std::shared_ptr<const IntervalMask> intervals, std::string why);

  MaskForm form() const { return MaskForm::intervals; }
  const MaskShape& shape() const { return intervals_->shape(); }
  const IntervalMask& intervals() const { return *intervals_; }
  const std::string& why() const { return why_; }
  std::size_t memory_bytes() const { return intervals_->memory_bytes(); }

 private:
  std::shared_ptr<const IntervalMask> intervals_;
  std::string why_;
};

/// Nothing when the mask fits two masked ranges a column.
FLASHMASK_API std::optional<Misfit> find_misfit(const Mask& mask);

/// Mask → IntervalMask where it fits. Throws Status::unsupported naming the first column that does not.
FLASHMASK_API LoweredMask lower(const Mask& mask);

/// Dense booleans [batch, heads, rows, columns], 1 = visible.
FLASHMASK_API std::vector<std::uint8_t> expand(const Mask& mask);

/// From dense booleans [batch, heads, rows, columns], nonzero = visible.
FLASHMASK_API Mask from_dense(const MaskShape& shape, std::span<const std::uint8_t> visible);

/// From a predicate (batch, head, row, column) → visible. It must be a pure function. It is called here, by the calling
/// thread; where the mask does not fit two ranges a column it is kept and called again by whoever reads the mask.
using MaskPredicate = std::function<bool(std::int64_t, std::int64_t, std::int64_t, std::int64_t)>;
FLASHMASK_API Mask from_predicate(const MaskShape& shape, MaskPredicate predicate);

/// One mask a batch entry, or one a head; all of the same rows and columns (and heads, batch).
FLASHMASK_API Mask stack_batch(std::span<const Mask> masks);
FLASHMASK_API Mask stack_heads(std::span<const Mask> masks);

FLASHMASK_API std::string to_string(MaskForm form);

}  // namespace flashmask
