// SPDX-License-Identifier: Apache-2.0
#include "schedule/places.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>

#include "base/checks.h"
#include "flashmask/error.h"
#include "mask/chosen_tokens.h"
#include "mask/moved_mask.h"
#include "mask/to_bits.h"
#include "schedule/islands.h"

namespace flashmask {
namespace {

/// Cuts the tokens of one axis and one batch entry into units, from left to right.
class UnitCutter {
 public:
  UnitCutter(std::int64_t size, std::int64_t multiple) : size_(size), multiple_(multiple) {}

  /// Adds an island's tokens. Its first unit begins at the first of them that is a multiple of `multiple`; those before
  /// it stay in the open unit.
  void add(Span tokens) {
    const std::int64_t first = std::min((tokens.begin + multiple_ - 1) / multiple_ * multiple_, tokens.end);
    fill({tokens.begin, first});
    if (first < tokens.end) open_ = 0;
    fill({first, tokens.end});
  }

  const std::vector<Unit>& units() const { return units_; }

 private:
  void fill(Span tokens) {
    for (std::int64_t token = tokens.begin; token < tokens.end;) {
      if (open_ == 0) units_.push_back({static_cast<std::int32_t>(token), 0});
      const std::int64_t end = std::min(tokens.end, token + size_ - open_);
      open_ = (open_ + end - token) % size_;
      units_.back().end = static_cast<std::int32_t>(end);
      token = end;
    }
  }

  std::int64_t size_, multiple_;
  std::int64_t open_ = 0;  ///< tokens of the open unit; 0: none is open
  std::vector<Unit> units_;
};

void check_multiple(const Island& island, std::int64_t multiple) {
  const auto check = [&](const char* axis, const Span& tokens) {
    if (tokens.begin % multiple == 0) return;
    throw Error(Status::unsupported, "plan: invariant was asked for with dropout, which takes tokens " +
                                         grouped(multiple) + " at a time, and a document begins at " + axis + " " +
                                         grouped(tokens.begin) + "; let all begin at multiples of " +
                                         grouped(multiple) + ", with padding between them that sees nothing or itself");
  };
  check("row", island.rows);
  check("column", island.columns);
}

void append(UnitLists& lists, const std::vector<Unit>& units) {
  lists.units.insert(lists.units.end(), units.begin(), units.end());
  lists.offsets.push_back(std::ssize(lists.units));
}

/// The tokens of one axis with their places for numbers, per batch entry.
std::vector<ChosenTokens> numbered(const UnitLists& lists) {
  std::vector<ChosenTokens> entries;
  for (std::size_t i = 0; i + 1 < lists.offsets.size(); ++i) {
    std::vector<Span> spans;
    for (auto u = static_cast<std::size_t>(lists.offsets[i]); u < static_cast<std::size_t>(lists.offsets[i + 1]); ++u)
      spans.push_back({lists.units[u].begin, lists.units[u].end});
    entries.emplace_back(spans, lists.size);
  }
  return entries;
}

std::int64_t places_of(const UnitLists& lists) {
  const std::int64_t count = lists.most() * lists.size;
  if (count > std::numeric_limits<std::int32_t>::max())
    refuse("plan: tiles that begin where documents begin take " + grouped(count) + " places for " +
           grouped(lists.tokens) + " tokens; at most 2,147,483,647 fit: take fewer documents, or longer ones");
  return count;
}

LoweredMask moved(const LoweredMask& mask, const UnitLists& rows, const UnitLists& columns, Executor& executor) {
  const std::vector<ChosenTokens> row_numbers = numbered(rows), column_numbers = numbered(columns);
  const auto tokens = [&](std::int64_t batch) {
    const auto entry = static_cast<std::size_t>(batch);
    return TokensOfEntry{row_numbers[entry], column_numbers[entry]};
  };
  const MaskShape to{mask.shape().batch, mask.shape().heads, places_of(rows), places_of(columns)};
  if (is_plain_intervals(mask))
    return {std::make_shared<const IntervalMask>(moved_intervals(mask.intervals(), to, tokens)), mask.why()};
  return {std::make_shared<const BitMask>(moved_bits(*to_bits(mask, executor), to, tokens, executor)), mask.why()};
}

}  // namespace

PlacedTokens UnitLists::of(std::int64_t batch) const {
  const std::size_t entry = offsets.size() == 2 ? 0 : static_cast<std::size_t>(batch);
  return {units.data() + offsets[entry], offsets[entry + 1] - offsets[entry], size, tokens};
}

std::int64_t UnitLists::most() const {
  std::int64_t most = 0;
  for (std::size_t i = 1; i < offsets.size(); ++i) most = std::max(most, offsets[i] - offsets[i - 1]);
  return most;
}

std::vector<Unit> UnitLists::padded() const {
  const std::int64_t length = most(), entries = std::ssize(offsets) - 1;
  const auto end = static_cast<std::int32_t>(tokens);
  std::vector<Unit> padded(static_cast<std::size_t>(entries * length), Unit{end, end});
  for (std::int64_t entry = 0; entry < entries; ++entry)
    std::copy(units.begin() + offsets[static_cast<std::size_t>(entry)],
              units.begin() + offsets[static_cast<std::size_t>(entry) + 1], padded.begin() + entry * length);
  return padded;
}

std::vector<std::int64_t> UnitLists::order() const {
  std::vector<std::int64_t> order;
  for (const Unit& unit : padded()) {
    const auto end = static_cast<std::int64_t>(order.size()) + size;
    for (std::int64_t token = unit.begin; token < unit.end; ++token) order.push_back(token);
    order.resize(static_cast<std::size_t>(end), -1);
  }
  return order;
}

TileShape unit_of(TileShape tile) {
  for (const std::int32_t size : {128, 192})
    if (size % tile.rows == 0 && size % tile.columns == 0) return {size, size};
  refuse("tile is " + grouped(tile.rows) + " x " + grouped(tile.columns) +
         "; where tiles begin at cuts, give sides that divide 128, or 192");
}

Places places(const LoweredMask& mask, TileShape unit, std::int64_t multiple, Executor& executor) {
  UnitLists rows{{0}, {}, unit.rows, mask.shape().rows}, columns{{0}, {}, unit.columns, mask.shape().columns};
  for (std::int64_t batch = 0; batch < mask.shape().batch; ++batch) {
    UnitCutter row_units(unit.rows, multiple), column_units(unit.columns, multiple);
    for (const Island& island : islands(mask, batch, executor)) {
      if (!island.single) check_multiple(island, multiple);
      row_units.add(island.rows);
      column_units.add(island.columns);
    }
    append(rows, row_units.units());
    append(columns, column_units.units());
  }
  LoweredMask in_places = moved(mask, rows, columns, executor);
  return {std::move(rows), std::move(columns), std::move(in_places)};
}

}  // namespace flashmask
