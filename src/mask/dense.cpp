#include <utility>

#include "flashmask/mask.h"
#include "mask/check.h"
#include "mask/fit.h"

namespace flashmask {
namespace {

/// A mask that is known score by score.
class PredicateSource final : public MaskSource {
 public:
  PredicateSource(std::int64_t rows, MaskPredicate predicate) : rows_(rows), predicate_(std::move(predicate)) {}

  void masked_rows(std::int64_t batch, std::int64_t head, std::int64_t column,
                   std::vector<Interval>& out) const override {
    out.clear();
    bool masked_above = false;
    for (std::int64_t row = 0; row < rows_; ++row) {
      const bool masked = !predicate_(batch, head, row, column);
      const auto r = static_cast<std::int32_t>(row);
      if (masked && !masked_above) out.push_back({r, r});
      if (masked) out.back().end = r + 1;
      masked_above = masked;
    }
  }

  bool visible(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) const override {
    return predicate_(batch, head, row, column);
  }

 private:
  std::int64_t rows_;
  MaskPredicate predicate_;
};

void check_shape(const std::string& function, const MaskShape& shape) {
  check_size(function, "shape.batch", shape.batch);
  check_size(function, "shape.heads", shape.heads);
  check_size(function, "shape.rows", shape.rows);
  check_size(function, "shape.columns", shape.columns);
}

Mask from_scores(const std::string& function, const MaskShape& shape, MaskPredicate predicate) {
  return make_mask(shape, std::make_shared<PredicateSource>(shape.rows, std::move(predicate)), function);
}

}  // namespace

Mask from_dense(const MaskShape& shape, std::span<const std::uint8_t> visible) {
  check_shape("from_dense", shape);
  const std::size_t expected = element_count("from_dense", {shape.batch, shape.heads, shape.rows, shape.columns});
  if (visible.size() != expected) {
    refuse("from_dense: visible has " + counted(visible.size(), "value") + " but batch x heads x rows x columns is " +
           grouped(static_cast<std::int64_t>(expected)) + "; give one value a score");
  }
  auto scores = std::make_shared<const std::vector<std::uint8_t>>(visible.begin(), visible.end());
  return from_scores("from_dense", shape, [shape, scores](auto batch, auto head, auto row, auto column) {
    const std::int64_t line = (batch * shape.heads + head) * shape.rows + row;
    return (*scores)[static_cast<std::size_t>(line * shape.columns + column)] != 0;
  });
}

Mask from_predicate(const MaskShape& shape, MaskPredicate predicate) {
  check_shape("from_predicate", shape);
  if (!predicate) refuse("from_predicate: the predicate is empty; give a function of (batch, head, row, column)");
  return from_scores("from_predicate", shape, std::move(predicate));
}

}  // namespace flashmask
