#include "mask/fit.h"

#include <utility>

#include "mask/interval_source.h"

namespace flashmask {
namespace {

/// Calls body(batch, head, column) in that order until it returns false.
template <typename Body>
void for_each_column(const MaskShape& shape, const Body& body) {
  for (std::int64_t batch = 0; batch < shape.batch; ++batch) {
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      for (std::int64_t column = 0; column < shape.columns; ++column) {
        if (!body(batch, head, column)) return;
      }
    }
  }
}

}  // namespace

Fit fit(const MaskShape& shape, const MaskSource& source) {
  if (auto at_hand = source.intervals()) return {std::move(at_hand), std::nullopt};
  auto intervals = std::make_shared<IntervalMask>(shape);
  std::optional<Misfit> misfit;
  std::vector<Interval> masked;
  for_each_column(shape, [&](std::int64_t batch, std::int64_t head, std::int64_t column) {
    source.masked_rows(batch, head, column, masked);
    if (masked.size() > 2) {
      misfit = Misfit{batch, head, column, static_cast<std::int64_t>(masked.size())};
      return false;
    }
    masked.resize(2);
    intervals->set(intervals->index(batch, head, column), masked[0], masked[1]);
    return true;
  });
  if (misfit) return {nullptr, misfit};
  return {std::move(intervals), std::nullopt};
}

Mask make_mask(const MaskShape& shape, std::shared_ptr<const MaskSource> source, std::string description) {
  if (auto intervals = fit(shape, *source).intervals) source = std::make_shared<IntervalSource>(std::move(intervals));
  return {shape, std::move(source), std::move(description)};
}

}  // namespace flashmask
