// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "mask/builders/visible_columns.h"
#include "mask/builders/visible_rows.h"

namespace flashmask::masks {
namespace {

void check_stride(const std::string& builder, std::int64_t stride) {
  check_at_least(builder, "stride", stride, 1, "the columns of one factor");
}

}  // namespace

Mask strided_factorised(std::int64_t tokens, std::int64_t stride) {
  const MaskShape shape = shape_of("strided_factorised", tokens);
  check_stride("strided_factorised", stride);
  const std::int64_t step = std::min(stride, tokens);
  const auto visible = [step](std::int64_t, std::int64_t, std::int64_t row, std::vector<Span>& out) {
    out.assign(1, {row - step, row + 1});
    for (std::int64_t j = row - 2 * step; j >= 0; j -= step) out.push_back({j, j + 1});
  };
  return {from_visible_columns(shape, visible), "strided_factorised(" + grouped(stride) + ")"};
}

Mask fixed_factorised(std::int64_t tokens, std::int64_t stride, std::int64_t summary) {
  check_stride("fixed_factorised", stride);
  if (summary < 0 || summary > stride) {
    refuse("fixed_factorised: summary is " + grouped(summary) +
           "; give the number of a block's last columns that later blocks see, from 0 to stride, which is " +
           grouped(stride));
  }
  // By column this mask is simple: the rows that see a column are one range.
  IntervalMask mask = all_visible("fixed_factorised", tokens);
  for (std::int64_t j = 0; j < tokens; ++j) {
    const bool summarises = j % stride >= stride - summary;
    show_column(mask, j, {j, summarises ? tokens : (j / stride + 1) * stride});
  }
  return {std::move(mask), "fixed_factorised(" + grouped(stride) + ", " + grouped(summary) + ")"};
}

}  // namespace flashmask::masks
