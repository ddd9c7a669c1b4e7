// SPDX-License-Identifier: Apache-2.0
#include "partition/split.h"

#include <algorithm>
#include <array>
#include <bit>
#include <compare>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <tuple>
#include <utility>

namespace flashmask {
namespace {

constexpr std::int64_t kMillion = 1'000'000;
/// The most starts at which each window of a pair is tried, before the best pair is moved in smaller steps.
constexpr std::int64_t kMostStarts = 192;

using Tiles = std::vector<std::int32_t>;

/// How good a cut is: smaller is better, and earlier terms matter first.
struct Score {
  std::array<std::int64_t, 3> terms;
  auto operator<=>(const Score&) const = default;
};

/// One or two windows of a sequence closed into a ring; the second may be empty.
struct Windows {
  std::array<std::int64_t, 2> start{};
  std::array<std::int64_t, 2> length{};
};

/// A part of the sequence that is to be cut in two, as a ring of tiles.
class Ring {
 public:
  Ring(const TileMeasures& measures, Tiles tiles, std::int64_t share, std::int64_t parts, const SplitAim& aim)
      : tiles_(std::move(tiles)), aim_(aim) {
    const std::size_t n = tiles_.size();
    rows_.resize(2 * n + 1);
    columns_.resize(2 * n + 1);
    crossing_.resize(2 * n);
    for (std::size_t i = 0; i < n; ++i) {
      const auto tile = static_cast<std::size_t>(tiles_[i]);
      rows_[i + 1] = rows_[i] + measures.rows[tile];
      columns_[i + 1] = columns_[i] + measures.columns[tile];
      // Where the part was cut already, another cut costs nothing.
      if (i != 0 && tiles_[i - 1] + 1 == tiles_[i]) crossing_[n + i] = crossing_[i] = measures.crossing[tile];
    }
    for (std::vector<std::int64_t>* const sums : {&rows_, &columns_}) {
      to_shares({sums->data(), n + 1}, (*sums)[n] * share / parts);
      for (std::size_t i = 1; i <= n; ++i) (*sums)[n + i] = (*sums)[n] + (*sums)[i];
    }
  }

  std::int64_t size() const { return std::ssize(tiles_); }
  const Tiles& tiles() const { return tiles_; }

  Score score(const Windows& windows) const {
    std::int64_t rows = 0, columns = 0, crossing = 0;
    for (std::size_t i = 0; i < 2; ++i) {
      rows += rows_of(windows.start[i], windows.length[i]);
      columns += columns_of(windows.start[i], windows.length[i]);
      crossing += crossing_of(windows.start[i], windows.length[i]);
    }
    return score(rows, columns, crossing);
  }

  /// Scores windows by their row work, their column work and what crosses their cuts. Column work matters less than row
  /// work: it takes time only where gradients of keys are computed by their owner.
  Score score(std::int64_t rows, std::int64_t columns, std::int64_t crossing) const {
    const std::int64_t error = std::max(std::abs(rows - kMillion), std::abs(columns - kMillion) / 2);
    if (aim_.work_price != 0) return {{error * aim_.work_price + crossing * aim_.column_price, crossing, error}};
    return {{std::max<std::int64_t>(0, error - aim_.tolerance), crossing, error}};
  }

  /// Returns the error in row work beyond which windows are not better than `best`.
  std::int64_t largest_error(const Score& best) const {
    return aim_.work_price == 0 ? best.terms[0] + aim_.tolerance : best.terms[0] / aim_.work_price;
  }

  /// Whether windows that `crossing` column tiles cross cannot be better than `best`.
  bool rules_out(const Score& best, std::int64_t crossing) const {
    return aim_.work_price == 0 ? best.terms[0] == 0 && crossing > best.terms[1]
                                : crossing * aim_.column_price > best.terms[0];
  }

  std::int64_t rows_of(std::int64_t start, std::int64_t length) const { return within(rows_, start, length); }
  std::int64_t columns_of(std::int64_t start, std::int64_t length) const { return within(columns_, start, length); }
  std::int64_t crossing_of(std::int64_t start, std::int64_t length) const {
    if (length == 0 || length == size()) return 0;
    return crossing_[static_cast<std::size_t>(start)] + crossing_[static_cast<std::size_t>(start + length)];
  }

 private:
  /// Converts sums to millionths of `target`, without products of more than 63 bits.
  static void to_shares(std::span<std::int64_t> sums, std::int64_t target) {
    const int shift = std::max(0, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(sums.back()))) - 42);
    const std::int64_t divisor = std::max<std::int64_t>(1, target >> shift);
    for (std::int64_t& sum : sums) sum = (sum >> shift) * kMillion / divisor;
  }

  static std::int64_t within(const std::vector<std::int64_t>& sums, std::int64_t start, std::int64_t length) {
    return sums[static_cast<std::size_t>(start + length)] - sums[static_cast<std::size_t>(start)];
  }

  Tiles tiles_;
  SplitAim aim_;
  /// [2 n + 1]: prefix sums, twice around the ring, in millionths of what the first part should have.
  std::vector<std::int64_t> rows_, columns_;
  std::vector<std::int64_t> crossing_;  ///< [2 n]: what crosses a cut before each tile, twice around the ring
};

Windows best_window(const Ring& ring, std::int64_t length) {
  Windows best{{0, 0}, {length, 0}};
  Score score = ring.score(best);
  for (std::int64_t start = 1; start < ring.size(); ++start) {
    const Windows windows{{start, 0}, {length, 0}};
    const Score found = ring.score(windows);
    if (found < score) std::tie(best, score) = std::pair(windows, found);
  }
  return best;
}

/// Whether the windows of a ring have a tile in common.
bool overlap(const Ring& ring, const Windows& windows) {
  const std::int64_t n = ring.size();
  const std::int64_t from_first = ((windows.start[1] - windows.start[0]) % n + n) % n;
  return from_first < windows.length[0] || (n - from_first) % n < windows.length[1];
}

/// A start of one window of a pair, with what the window then contains and what crosses its cuts.
struct WindowStart {
  std::int64_t start, rows, columns, crossing;
};

/// Returns, of every `step` neighbouring starts, the one that is cheapest to cut: crossing varies much from tile to
/// tile, work little.
std::vector<WindowStart> window_starts(const Ring& ring, std::int64_t length, std::int64_t step) {
  std::vector<WindowStart> starts;
  for (std::int64_t start = 0; start < ring.size(); ++start) {
    const std::int64_t crossing = ring.crossing_of(start, length);
    if (start % step != 0 && crossing >= starts.back().crossing) continue;
    if (start % step != 0) starts.pop_back();
    starts.push_back({start, ring.rows_of(start, length), ring.columns_of(start, length), crossing});
  }
  return starts;
}

/// Moves both windows by smaller and smaller steps wherever that is better.
Windows refined(const Ring& ring, Windows best, std::int64_t step) {
  const auto moved = [&](std::int64_t start, std::int64_t by) { return (start + by + ring.size()) % ring.size(); };
  for (step /= 2; step > 0; step /= 2) {
    const Windows around = best;
    Score score = ring.score(best);
    for (const std::int64_t a : {-step, std::int64_t{0}, step}) {
      for (const std::int64_t b : {-step, std::int64_t{0}, step}) {
        const Windows windows{{moved(around.start[0], a), moved(around.start[1], b)}, around.length};
        if (overlap(ring, windows)) continue;
        const Score found = ring.score(windows);
        if (found < score) std::tie(best, score) = std::pair(windows, found);
      }
    }
  }
  return best;
}

/// Returns the starts with `least` to `most` row work; `starts` are in ascending order of it.
std::span<const WindowStart> with_rows(const std::vector<WindowStart>& starts, std::int64_t least, std::int64_t most) {
  const auto begin = std::ranges::lower_bound(starts, least, {}, &WindowStart::rows);
  return {begin, std::ranges::upper_bound(begin, starts.end(), most, {}, &WindowStart::rows)};
}

/// Returns the best pair of windows of half the length each, or `otherwise` if no pair is better; on a tie between
/// pairs the smaller starts win.
Windows best_pair(const Ring& ring, std::int64_t length, const Windows& otherwise) {
  const std::int64_t step = (ring.size() + kMostStarts - 1) / kMostStarts;
  const std::array<std::int64_t, 2> lengths{length / 2, length - length / 2};
  Windows best = otherwise;
  Score score = ring.score(best);
  const auto first = window_starts(ring, lengths[0], step);
  auto second = window_starts(ring, lengths[1], step);
  std::ranges::sort(second, {}, [](const WindowStart& one) { return std::pair(one.rows, one.start); });
  for (const WindowStart& a : first) {
    if (ring.rules_out(score, a.crossing)) continue;
    const std::int64_t error = ring.largest_error(score), missing = kMillion - a.rows;
    for (const WindowStart& b : with_rows(second, missing - error, missing + error)) {
      if (ring.rules_out(score, a.crossing + b.crossing)) continue;
      const Score found = ring.score(a.rows + b.rows, a.columns + b.columns, a.crossing + b.crossing);
      const Windows windows{{a.start, b.start}, lengths};
      if (found > score) continue;
      if (found == score && (best.length != lengths || best.start < windows.start)) continue;
      if (overlap(ring, windows)) continue;
      std::tie(best, score) = std::pair(windows, found);
    }
  }
  return best.length[1] == 0 ? best : refined(ring, best, step);
}

/// Returns the tiles inside the windows and those outside, both in order.
std::pair<Tiles, Tiles> separated(const Ring& ring, const Windows& windows) {
  std::vector<bool> inside(static_cast<std::size_t>(ring.size()));
  for (std::size_t i = 0; i < 2; ++i) {
    for (std::int64_t k = 0; k < windows.length[i]; ++k)
      inside[static_cast<std::size_t>((windows.start[i] + k) % ring.size())] = true;
  }
  std::pair<Tiles, Tiles> parts;
  for (std::size_t i = 0; i < inside.size(); ++i) (inside[i] ? parts.first : parts.second).push_back(ring.tiles()[i]);
  return parts;
}

/// Deals a sequence out to ranks by repeated bisection; the groups of a level are separated before the ranks in them.
class Splitter {
 public:
  Splitter(const TileMeasures& measures, std::span<const std::int32_t> sizes, const SplitAim& aim)
      : measures_(measures), sizes_(sizes), aim_(aim), owners_(measures.rows.size()) {
    ranks_ = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
  }

  TileOwners owners() {
    Tiles all(owners_.size());
    std::iota(all.begin(), all.end(), 0);
    deal(all, 0, sizes_.front(), ranks_ / sizes_.front(), 0);
    return std::move(owners_);
  }

 private:
  /// Deals `tiles` to `groups` groups of `size` ranks each, from rank `first` on; `level` is an index into the sizes.
  void deal(const Tiles& tiles, std::int64_t first, std::int64_t groups, std::int64_t size, std::size_t level) {
    if (tiles.empty()) return;
    if (groups == 1 && size == 1) {
      for (const std::int32_t tile : tiles) owners_[static_cast<std::size_t>(tile)] = static_cast<std::int32_t>(first);
      return;
    }
    if (groups == 1) return deal(tiles, first, sizes_[level + 1], size / sizes_[level + 1], level + 1);
    const std::int64_t half = groups / 2;
    const auto [left, right] = halves(tiles, first, first + half * size, first + groups * size);
    deal(left, first, half, size, level);
    deal(right, first + half * size, groups - half, size, level);
  }

  /// Returns the tiles of ranks [begin, middle) and those of [middle, end).
  std::pair<Tiles, Tiles> halves(const Tiles& tiles, std::int64_t begin, std::int64_t middle, std::int64_t end) const {
    const std::int64_t all = std::ssize(owners_);
    const std::int64_t length = all * middle / ranks_ - all * begin / ranks_;
    const Ring ring(measures_, tiles, middle - begin, end - begin, aim_);
    if (length == 0 || length == ring.size()) return separated(ring, {{0, 0}, {length, 0}});
    const Windows window = best_window(ring, length);
    if (aim_.work_price == 0 && ring.score(window).terms[0] == 0) return separated(ring, window);
    return separated(ring, best_pair(ring, length, window));
  }

  const TileMeasures& measures_;
  std::span<const std::int32_t> sizes_;
  SplitAim aim_;
  TileOwners owners_;
  std::int64_t ranks_ = 1;
};

}  // namespace

TileOwners split_owners(const TileMeasures& measures, std::span<const std::int32_t> sizes, const SplitAim& aim) {
  return Splitter(measures, sizes, aim).owners();
}

}  // namespace flashmask
