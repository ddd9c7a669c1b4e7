#include <utility>

#include "flashmask/mask.h"
#include "mask/check.h"
#include "mask/fit.h"

namespace flashmask {
namespace {

enum class Axis { batch, heads };

/// Masks one after another along one axis.
class StackedSource final : public MaskSource {
 public:
  StackedSource(std::span<const Mask> masks, Axis axis) : axis_(axis) {
    for (const Mask& mask : masks) {
      const std::int64_t size = axis == Axis::batch ? mask.shape().batch : mask.shape().heads;
      for (std::int64_t i = 0; i < size; ++i) layers_.push_back({mask, i});
    }
  }

  std::int64_t size() const { return static_cast<std::int64_t>(layers_.size()); }

  void masked_rows(std::int64_t batch, std::int64_t head, std::int64_t column,
                   std::vector<Interval>& out) const override {
    const Layer& layer = layers_[static_cast<std::size_t>(axis_ == Axis::batch ? batch : head)];
    (axis_ == Axis::batch ? batch : head) = layer.index;
    layer.mask.source().masked_rows(batch, head, column, out);
  }

 private:
  struct Layer {
    Mask mask;
    std::int64_t index;  ///< batch entry or head within the mask
  };
  Axis axis_;
  std::vector<Layer> layers_;
};

std::string text(const MaskShape& shape) {
  return grouped(shape.batch) + " x " + grouped(shape.heads) + " x " + grouped(shape.rows) + " x " +
         grouped(shape.columns);
}

/// The extent along the stacked axis may differ from mask to mask; the rest may not.
void check_same(const std::string& function, std::span<const Mask> masks, std::int64_t MaskShape::*stacked) {
  if (masks.empty()) refuse(function + ": no masks given; give at least one");
  for (std::size_t i = 1; i < masks.size(); ++i) {
    MaskShape shape = masks[i].shape();
    shape.*stacked = masks[0].shape().*stacked;
    if (shape == masks[0].shape()) continue;
    refuse(function + ": masks[" + std::to_string(i) + "] has shape " + text(masks[i].shape()) + " but masks[0] has " +
           text(masks[0].shape()) +
           " (batch x heads x rows x columns); give masks that differ in the stacked axis only");
  }
}

Mask stack(const std::string& function, std::span<const Mask> masks, Axis axis) {
  std::int64_t MaskShape::*stacked = axis == Axis::batch ? &MaskShape::batch : &MaskShape::heads;
  check_same(function, masks, stacked);
  auto source = std::make_shared<StackedSource>(masks, axis);
  MaskShape shape = masks[0].shape();
  shape.*stacked = source->size();
  return make_mask(shape, std::move(source), function + "(" + counted(masks.size(), "mask") + ")");
}

}  // namespace

Mask stack_batch(std::span<const Mask> masks) { return stack("stack_batch", masks, Axis::batch); }

Mask stack_heads(std::span<const Mask> masks) { return stack("stack_heads", masks, Axis::heads); }

}  // namespace flashmask
