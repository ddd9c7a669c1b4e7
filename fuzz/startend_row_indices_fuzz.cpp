// SPDX-License-Identifier: Apache-2.0
// Any bytes as startend_row_indices of a small mask: import, lower, export and import again, schedule. The results are
// compared with the format's own definition, score by score.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "flashmask/error.h"
#include "flashmask/executor.h"
#include "flashmask/mask.h"
#include "flashmask/schedule.h"
#include "flashmask/startend_row_indices.h"

namespace {

using flashmask::MaskShape;

void check(bool holds) {
  if (!holds) std::abort();
}

/// Reads the fuzzer's bytes from front to back; zeros follow their end.
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}

  template <typename T>
  T take() {
    T value{};
    const std::size_t count = std::min(sizeof(T), rest_.size());
    std::memcpy(&value, rest_.data(), count);
    rest_ = rest_.subspan(count);
    return value;
  }

 private:
  std::span<const std::uint8_t> rest_;
};

struct Case {
  MaskShape shape;
  int vectors = 0;
  bool causal = false;
  std::vector<std::int32_t> values;
};

Case take_case(Bytes bytes) {
  Case given;
  const auto header = bytes.take<std::uint8_t>();
  given.causal = (header & 1) != 0;
  given.vectors = 1 + (header >> 1) % 5;  // 3 and 5 are refused
  given.shape = {1 + (header >> 6), 1 + bytes.take<std::uint8_t>() % 3, 1 + bytes.take<std::uint8_t>() % 40,
                 1 + bytes.take<std::uint8_t>() % 40};
  const auto count = given.shape.batch * given.shape.heads * given.shape.columns * given.vectors;
  given.values.resize(static_cast<std::size_t>(count));
  // One byte reaches every row, both sides of the mask and, through the extremes, the ends of int32.
  for (auto& value : given.values) {
    const auto byte = bytes.take<std::int8_t>();
    value = byte == 127 ? INT32_MAX : byte == -128 ? INT32_MIN : byte;
  }
  return given;
}

bool in(std::int64_t row, std::int64_t begin, std::int64_t end) { return begin <= row && row < end; }

/// Visibility by the table in flashmask/startend_row_indices.h.
bool visible(const Case& given, std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) {
  const MaskShape& shape = given.shape;
  if (given.causal && row < column + shape.rows - shape.columns) return false;
  const auto* v =
      &given.values[static_cast<std::size_t>(((batch * shape.heads + head) * shape.columns + column) * given.vectors)];
  if (given.vectors == 1) return row < v[0];
  if (given.vectors == 4) return !in(row, v[0], v[1]) && !in(row, v[2], v[3]);
  return given.causal ? !in(row, v[0], v[1]) : row < v[0] && row >= v[1];
}

bool legal(const Case& given) {
  return given.causal ? given.vectors == 1 || given.vectors == 2 : given.vectors == 2 || given.vectors == 4;
}

template <typename Body>
void for_each_score(const MaskShape& shape, Body&& body) {
  for (std::int64_t batch = 0; batch < shape.batch; ++batch) {
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      for (std::int64_t row = 0; row < shape.rows; ++row) {
        for (std::int64_t column = 0; column < shape.columns; ++column) body(batch, head, row, column);
      }
    }
  }
}

void check_scores(const Case& given, const flashmask::IntervalMask& mask) {
  for_each_score(given.shape, [&](auto... score) { check(mask.visible(score...) == visible(given, score...)); });
}

void check_export(const flashmask::IntervalMask& mask) {
  const auto exported = flashmask::to_startend_row_indices(mask);
  const auto again =
      flashmask::from_startend_row_indices(exported.values, exported.shape, exported.vectors, exported.causal);
  check(flashmask::lower(again).intervals() == mask);
}

void check_schedule(const flashmask::LoweredMask& mask) {
  constexpr flashmask::TileShape tile{8, 4};
  const auto schedule = flashmask::schedule(mask, tile, flashmask::Visit::active, flashmask::serial_executor());
  flashmask::TileCounts counts;
  const MaskShape tiles{mask.shape().batch, mask.shape().heads, schedule.row_tiles(), schedule.column_tiles()};
  for_each_score(tiles, [&](auto batch, auto head, auto row, auto column) {
    switch (flashmask::classify(mask, batch, head, tile, row, column)) {
      case flashmask::TileKind::skip:
        ++counts.skip;
        break;
      case flashmask::TileKind::partial:
        ++counts.partial;
        break;
      case flashmask::TileKind::full:
        ++counts.full;
        break;
    }
  });
  check(schedule.counts() == counts);
}

void run(const Case& given) {
  const auto mask = flashmask::from_startend_row_indices(given.values, given.shape, given.vectors, given.causal);
  check(legal(given));
  const auto lowered = flashmask::lower(mask);
  check_scores(given, lowered.intervals());
  check_export(lowered.intervals());
  check_schedule(lowered);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Case given = take_case({data, size});
  try {
    run(given);
  } catch (const flashmask::Error& error) {
    check(error.status() == flashmask::Status::invalid_argument);
    check(!legal(given));
  }
  return 0;
}
