// SPDX-License-Identifier: Apache-2.0
// Any bytes as the packed bits of a small mask: import, both lowered forms, complement, schedule. The results are
// compared with the bits, score by score.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "flashmask/error.h"
#include "flashmask/executor.h"
#include "flashmask/mask.h"
#include "flashmask/schedule.h"

namespace {

using flashmask::LoweredMask;
using flashmask::Mask;
using flashmask::MaskForm;
using flashmask::MaskShape;

void check(bool holds) {
  if (!holds) std::abort();
}

/// Four bytes give the size, around the edges of cells; the bits follow, and zeros after the end of the bytes.
struct Case {
  explicit Case(std::span<const std::uint8_t> bytes) {
    const auto byte = [&](std::size_t i) { return i < bytes.size() ? bytes[i] : std::uint8_t{0}; };
    shape = {1 + byte(0) % 2, 1 + byte(1) % 2, 1 + byte(2) % 140, 1 + byte(3) % 140};
    row_bytes = (shape.columns + 7) / 8;
    bits.resize(static_cast<std::size_t>(shape.batch * shape.heads * shape.rows * row_bytes));
    const std::span rest = bytes.subspan(std::min<std::size_t>(4, bytes.size()));
    std::copy_n(rest.begin(), std::min(rest.size(), bits.size()), bits.begin());
  }

  bool visible(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) const {
    const std::int64_t byte = ((batch * shape.heads + head) * shape.rows + row) * row_bytes + column / 8;
    return (bits[static_cast<std::size_t>(byte)] >> column % 8 & 1) != 0;
  }

  MaskShape shape;
  std::int64_t row_bytes = 0;
  std::vector<std::uint8_t> bits;
};

template <typename Body>
void for_each(const MaskShape& shape, const Body& body) {
  for (std::int64_t batch = 0; batch < shape.batch; ++batch) {
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      for (std::int64_t row = 0; row < shape.rows; ++row) {
        for (std::int64_t column = 0; column < shape.columns; ++column) body(batch, head, row, column);
      }
    }
  }
}

void check_scores(const Case& given, const LoweredMask& mask) {
  for_each(given.shape, [&](auto... score) { check(mask.visible(score...) == given.visible(score...)); });
}

void check_schedule(const Case& given, const LoweredMask& mask) {
  constexpr flashmask::TileShape tile{32, 64};
  const auto schedule = flashmask::schedule(mask, tile, flashmask::Visit::active, flashmask::serial_executor());
  std::int64_t active = 0;
  const MaskShape tiles{given.shape.batch, given.shape.heads, schedule.row_tiles(), schedule.column_tiles()};
  for_each(tiles, [&](auto batch, auto head, auto row, auto column) {
    if (flashmask::classify(mask, batch, head, tile, row, column) != flashmask::TileKind::skip) ++active;
  });
  check(schedule.counts().active() == active);
}

void run(const Case& given) {
  flashmask::Executor& alone = flashmask::serial_executor();
  const Mask mask = flashmask::from_packed(given.shape, given.bits, alone);
  check_scores(given, mask.lowered());
  check_schedule(given, mask.lowered());
  if (mask.lowered().form() == MaskForm::intervals) {
    const LoweredMask bits = flashmask::lower(mask, MaskForm::bits, alone);
    check_scores(given, bits);
    check_schedule(given, bits);
  }
  const Mask complement = ~mask;
  for_each(given.shape, [&](auto... score) { check(complement.visible(score...) != given.visible(score...)); });
}

/// Checks that one byte too few is refused.
void cut(const Case& given) {
  try {
    flashmask::from_packed(given.shape, std::span(given.bits).first(given.bits.size() - 1));
    check(false);
  } catch (const flashmask::Error& error) {
    check(error.status() == flashmask::Status::invalid_argument);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Case given({data, size});
  run(given);
  cut(given);
  return 0;
}
