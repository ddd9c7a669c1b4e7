#include <array>
#include <utility>

#include "flashmask/mask.h"
#include "mask/check.h"
#include "mask/fit.h"
#include "mask/ranges.h"

namespace flashmask {
namespace {

/// One side of an operator, read with its batch and heads broadcast.
class Operand {
 public:
  explicit Operand(const Mask& mask) : mask_(mask), intervals_(mask.source().intervals()) {}

  /// The masked rows of a column. Interval masks need no heap: `few` holds them; `many` serves the rest.
  std::span<const Interval> masked_rows(std::int64_t batch, std::int64_t head, std::int64_t column,
                                        std::array<Interval, 2>& few, std::vector<Interval>& many) const {
    batch = mask_.shape().batch == 1 ? 0 : batch;
    head = mask_.shape().heads == 1 ? 0 : head;
    if (!intervals_) {
      mask_.source().masked_rows(batch, head, column, many);
      return many;
    }
    const std::size_t index = intervals_->index(batch, head, column);
    few = {intervals_->first(index), intervals_->second(index)};
    const std::size_t count = few[0].empty() ? 0 : few[1].empty() ? 1 : 2;
    return std::span<const Interval>(few).first(count);
  }

 private:
  Mask mask_;
  std::shared_ptr<const IntervalMask> intervals_;
};

using Combine = void (*)(std::span<const Interval>, std::span<const Interval>, std::vector<Interval>&);

class CombinedSource final : public MaskSource {
 public:
  CombinedSource(const Mask& a, const Mask& b, Combine combine) : a_(a), b_(b), combine_(combine) {}

  void masked_rows(std::int64_t batch, std::int64_t head, std::int64_t column,
                   std::vector<Interval>& out) const override {
    std::array<Interval, 2> few_a, few_b;
    std::vector<Interval> many_a, many_b;
    combine_(a_.masked_rows(batch, head, column, few_a, many_a), b_.masked_rows(batch, head, column, few_b, many_b),
             out);
  }

 private:
  Operand a_, b_;
  Combine combine_;
};

std::int64_t broadcast(const std::string& operation, const char* axis, std::int64_t a, std::int64_t b) {
  if (a != b && a != 1 && b != 1) {
    refuse(operation + ": the masks have " + grouped(a) + " and " + grouped(b) + " " + axis +
           "; give equal numbers, or 1 on one side");
  }
  return a == 1 ? b : a;
}

Mask combine(const Mask& a, const Mask& b, const std::string& symbol, Combine combine) {
  const std::string operation = "Mask " + symbol + " Mask";
  if (a.shape().rows != b.shape().rows || a.shape().columns != b.shape().columns) {
    refuse(operation + ": the masks are " + grouped(a.shape().rows) + " x " + grouped(a.shape().columns) + " and " +
           grouped(b.shape().rows) + " x " + grouped(b.shape().columns) + " scores; give masks of the same size");
  }
  const MaskShape shape{broadcast(operation, "batch entries", a.shape().batch, b.shape().batch),
                        broadcast(operation, "heads", a.shape().heads, b.shape().heads), a.shape().rows,
                        a.shape().columns};
  return make_mask(shape, std::make_shared<CombinedSource>(a, b, combine),
                   "(" + a.description() + " " + symbol + " " + b.description() + ")");
}

}  // namespace

/// Both see it: what either masks is masked.
Mask operator&(const Mask& a, const Mask& b) { return combine(a, b, "&", unite); }

/// Either sees it: what both mask is masked.
Mask operator|(const Mask& a, const Mask& b) { return combine(a, b, "|", intersect); }

}  // namespace flashmask
