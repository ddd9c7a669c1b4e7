// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "mask/builders/visible_columns.h"

namespace flashmask::masks {
namespace {

void check_axis(const std::string& axis, const NeighbourhoodAxis& given) {
  const std::string builder = "neighbourhood: " + axis;
  check_size(builder, "length", given.length);
  check_at_least(builder, "kernel", given.kernel, 1, "the tokens that a token sees along the axis");
  check_at_least(builder, "dilation", given.dilation, 1, "the distance between two of them");
  if (given.kernel > given.length / given.dilation) {
    refuse(builder + ": kernel is " + grouped(given.kernel) + " at a dilation of " + grouped(given.dilation) +
           " but length is " + grouped(given.length) + "; give kernel x dilation <= length");
  }
}

/// Returns the first token that `token` sees along an axis. Tokens of one residue modulo the dilation are neighbours.
std::int64_t first_seen(const NeighbourhoodAxis& axis, std::int64_t token) {
  const std::int64_t residue = token % axis.dilation;
  const std::int64_t neighbours = (axis.length - residue + axis.dilation - 1) / axis.dilation;
  const std::int64_t centred = token / axis.dilation - axis.kernel / 2;
  return residue + std::clamp<std::int64_t>(centred, 0, neighbours - axis.kernel) * axis.dilation;
}

/// Replaces each place on the outer axes by `count` ranges of `width` tokens on this axis, from `first`, `step` apart.
void spread(std::vector<Span>& places, std::int64_t length, std::int64_t first, std::int64_t count, std::int64_t step,
            std::int64_t width) {
  const std::size_t before = places.size();
  places.resize(before * static_cast<std::size_t>(count));
  for (std::size_t p = before; p-- > 0;) {  // backwards, so that a place is read before it is overwritten
    const std::int64_t base = places[p].begin * length + first;
    for (std::int64_t k = 0; k < count; ++k) {
      const std::int64_t begin = base + k * step;
      places[p * static_cast<std::size_t>(count) + static_cast<std::size_t>(k)] = {begin, begin + width};
    }
  }
}

std::string text(std::span<const NeighbourhoodAxis> axes) {
  std::string lengths;
  std::string kernels;
  for (const NeighbourhoodAxis& axis : axes) {
    const std::string separator = lengths.empty() ? "" : " x ";
    lengths += separator + grouped(axis.length);
    kernels += separator + grouped(axis.kernel);
    if (axis.dilation > 1) kernels += "/" + grouped(axis.dilation);
  }
  return "neighbourhood(" + lengths + ", kernel " + kernels + ")";
}

}  // namespace

Mask neighbourhood(Elements<NeighbourhoodAxis> axes) {
  std::int64_t tokens = 1;
  for (std::size_t a = 0; a < axes.size(); ++a) {
    check_axis("axes[" + std::to_string(a) + "]", axes[a]);
    tokens *= axes[a].length;
    check_size("neighbourhood", "the product of the lengths", tokens);
  }
  const auto visible = [&](std::int64_t, std::int64_t, std::int64_t row, std::vector<Span>& out) {
    out.assign(1, {0, 1});
    std::int64_t outer = tokens;  // product of the lengths of the remaining axes
    for (std::size_t a = 0; a < axes.size(); ++a) {
      const NeighbourhoodAxis& axis = axes[a];
      outer /= axis.length;
      const std::int64_t first = first_seen(axis, row / outer % axis.length);
      const bool one_range = a + 1 == axes.size() && axis.dilation == 1;
      spread(out, axis.length, first, one_range ? 1 : axis.kernel, axis.dilation, one_range ? axis.kernel : 1);
    }
  };
  return {from_visible_columns(shape_of("neighbourhood", tokens), visible), text(axes)};
}

Mask neighbourhood_2d(const NeighbourhoodAxis& height, const NeighbourhoodAxis& width) {
  return neighbourhood(std::array{height, width});
}

Mask neighbourhood_3d(const NeighbourhoodAxis& depth, const NeighbourhoodAxis& height, const NeighbourhoodAxis& width) {
  return neighbourhood(std::array{depth, height, width});
}

}  // namespace flashmask::masks
