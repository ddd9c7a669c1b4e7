// SPDX-License-Identifier: Apache-2.0
// Any bytes as a packed mask. A mask that is not refused packs to the same bytes again, and its lowered forms, dense
// scores and schedule can be made.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "flashmask/error.h"
#include "flashmask/executor.h"
#include "flashmask/packed_mask.h"
#include "flashmask/schedule.h"

namespace {

using flashmask::Mask;
using flashmask::MaskForm;

void check(bool holds) {
  if (!holds) std::abort();
}

void check_bytes(const Mask& mask, std::span<const std::byte> bytes) {
  std::vector<std::byte> again(flashmask::packed_bytes(mask));
  flashmask::pack(mask, again);
  check(std::ranges::equal(again, bytes));
}

/// Whether a mask is small enough to look at: a few bytes can describe one of many scores.
bool is_small(const flashmask::MaskShape& shape) {
  std::int64_t scores = 1;
  for (const std::int64_t size : {shape.batch, shape.heads, shape.rows, shape.columns}) {
    if (size > 4096) return false;
    scores *= size;
  }
  return scores <= 1 << 16 && shape.batch * shape.heads <= 64;
}

void look_at(const Mask& mask) {
  flashmask::Executor& alone = flashmask::serial_executor();
  const std::vector<std::uint8_t> scores = flashmask::expand(mask);
  const auto bits = flashmask::lower(mask, MaskForm::bits, alone);
  check(flashmask::expand(Mask(bits, "bits")) == scores);
  constexpr flashmask::TileShape tile{32, 64};
  const auto schedule = flashmask::schedule(mask.lowered(), tile, flashmask::Visit::active, alone);
  if (std::ranges::count(scores, 1) > 0) check(schedule.counts().active() > 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    const Mask mask = flashmask::unpack(bytes);
    check_bytes(mask, bytes);
    if (is_small(mask.shape())) look_at(mask);
  } catch (const flashmask::Error& error) {
    check(error.status() == flashmask::Status::invalid_argument);
  }
  return 0;
}
