// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "base/checks.h"
#include "flashmask/mask.h"
#include "mask/cell_reader.h"
#include "mask/cell_rows.h"
#include "mask/to_bits.h"

namespace flashmask {
namespace {

enum class Axis { batch, heads };

/// One batch entry, or one head, of a stack: number `index` of a given mask.
struct Layer {
  const Mask* mask;
  std::int64_t index;
};

std::vector<Layer> layers_of(std::span<const Mask> masks, std::int64_t MaskShape::*stacked) {
  std::vector<Layer> layers;
  for (const Mask& mask : masks) {
    for (std::int64_t i = 0; i < mask.shape().*stacked; ++i) layers.push_back({&mask, i});
  }
  return layers;
}

/// The layer that holds a batch entry and head of the stack, and their indices in the layer's own mask.
struct Held {
  const Layer& layer;
  std::int64_t batch, head;
};

Held held_by(const std::vector<Layer>& layers, Axis axis, std::int64_t batch, std::int64_t head) {
  const Layer& layer = layers[static_cast<std::size_t>(axis == Axis::batch ? batch : head)];
  return axis == Axis::batch ? Held{layer, layer.index, head} : Held{layer, batch, layer.index};
}

IntervalMask stack_intervals(const MaskShape& shape, const std::vector<Layer>& layers, Axis axis) {
  IntervalMask out(shape);
  for (std::int64_t batch = 0; batch < shape.batch; ++batch) {
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      const Held at = held_by(layers, axis, batch, head);
      const IntervalMask& mask = at.layer.mask->lowered().intervals();
      for (std::int64_t column = 0; column < shape.columns; ++column) {
        const std::size_t i = mask.index(at.batch, at.head, column);
        out.set(out.index(batch, head, column), mask.first(i), mask.second(i));
      }
    }
  }
  return out;
}

BitMask stack_bits(const MaskShape& shape, const std::vector<Layer>& layers, Axis axis) {
  Executor& executor = default_executor();
  std::vector<std::shared_ptr<const BitMask>> bits;  // the bits of each layer's mask
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const bool same = i > 0 && layers[i].mask == layers[i - 1].mask;
    bits.push_back(same ? bits.back() : to_bits(layers[i].mask->lowered(), executor));
  }
  return build_bits(shape, executor, [&]() -> FillCells {
    return [&](std::int64_t batch, std::int64_t head, std::int64_t cell_row, CellRows& out) {
      const Held at = held_by(layers, axis, batch, head);
      const BitMask& mask = *bits[static_cast<std::size_t>(&at.layer - layers.data())];
      for_each_cell_run(mask, at.batch, at.head, cell_row,
                        [&](const CellRun& run) { out.copy(run, run.begin, run.end); });
    };
  });
}

std::string text(const MaskShape& shape) {
  return grouped(shape.batch) + " x " + grouped(shape.heads) + " x " + grouped(shape.rows) + " x " +
         grouped(shape.columns);
}

/// Throws unless the masks have the same shape except along the stacked axis.
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
  const std::vector<Layer> layers = layers_of(masks, stacked);
  MaskShape shape = masks[0].shape();
  shape.*stacked = std::ssize(layers);
  const std::string description = function + "(" + counted(masks.size(), "mask") + ")";
  const bool intervals = std::ranges::all_of(masks, is_plain_intervals, &Mask::lowered);
  if (intervals) return {stack_intervals(shape, layers, axis), description};
  return {stack_bits(shape, layers, axis), description};
}

}  // namespace

Mask stack_batch(std::span<const Mask> masks) { return stack("stack_batch", masks, Axis::batch); }

Mask stack_heads(std::span<const Mask> masks) { return stack("stack_heads", masks, Axis::heads); }

}  // namespace flashmask
