#include "flashmask/mask.h"
#include "mask/check.h"
#include "mask/mask_source.h"

namespace flashmask {

std::vector<std::uint8_t> expand(const Mask& mask) {
  const MaskShape& shape = mask.shape();
  const std::size_t scores = element_count("expand", {shape.batch, shape.heads, shape.rows, shape.columns});
  std::vector<std::uint8_t> visible(scores, 1);
  std::vector<Interval> masked;
  std::uint8_t* matrix = visible.data();
  for (std::int64_t batch = 0; batch < shape.batch; ++batch) {
    for (std::int64_t head = 0; head < shape.heads; ++head, matrix += shape.rows * shape.columns) {
      for (std::int64_t column = 0; column < shape.columns; ++column) {
        mask.source().masked_rows(batch, head, column, masked);
        for (const Interval& range : masked) {
          for (std::int64_t row = range.begin; row < range.end; ++row) matrix[row * shape.columns + column] = 0;
        }
      }
    }
  }
  return visible;
}

}  // namespace flashmask
