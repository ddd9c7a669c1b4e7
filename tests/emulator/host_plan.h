// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cuda/common/views.h"
#include "cuda/tile_words.h"
#include "cuda/views/scores.h"
#include "flashmask/mask.h"
#include "flashmask/schedule.h"
#include "plan/device_plan.h"

/// What a plan gives to kernels, made in the memory of the host.
namespace flashmask::emulator {

/// A mask as kernels read it, in one of its forms.
class HostMask {
 public:
  HostMask(const Mask& mask, MaskForm form) : shape_(mask.shape()) {
    view_.rows = static_cast<int>(shape_.rows);
    view_.columns = static_cast<int>(shape_.columns);
    if (form == MaskForm::intervals) {
      copy_intervals(mask.lowered().intervals());
    } else {
      pack_cells(mask);
    }
  }
  HostMask(const HostMask&) = delete;
  HostMask& operator=(const HostMask&) = delete;

  const cuda::MaskView& view() const { return view_; }

 private:
  static constexpr int kCell = 64;

  void copy_intervals(const IntervalMask& mask) {
    const std::int32_t* const given[4] = {mask.first_begin(), mask.first_end(), mask.second_begin(), mask.second_end()};
    for (int i = 0; i < 4; ++i) {
      ends_[i].assign(given[i], given[i] + shape_.batch * shape_.heads * shape_.columns);
      view_.intervals[i] = ends_[i].data();
    }
  }

  /// All cells, by rows and by columns; rows past the last see every column, nobody sees a column past the last.
  void pack_cells(const Mask& mask) {
    auto& cells = view_.cells;
    cells.rows = (view_.rows + kCell - 1) / kCell;
    cells.columns = (view_.columns + kCell - 1) / kCell;
    const auto lists = static_cast<int>(shape_.batch * shape_.heads);
    cells.bits.stored = static_cast<std::uint32_t>(lists * cells.rows * cells.columns);
    words_.assign((cells.bits.stored + DeviceBits::kShared) * DeviceBits::kCellWords, 0);
    for (std::size_t i = std::size_t{cells.bits.stored} * DeviceBits::kCellWords; i < words_.size(); ++i)
      words_[i] = ~0U;  // of which only the cell that is masked throughout is read
    const std::vector<std::uint8_t> visible = expand(mask);
    for (int list = 0; list < lists; ++list)
      for (int row = 0; row < cells.rows * kCell; ++row)
        for (int column = 0; column < cells.columns * kCell; ++column) {
          const bool inside = row < view_.rows && column < view_.columns;
          const auto at = (static_cast<std::size_t>(list) * shape_.rows + row) * shape_.columns + column;
          if (inside ? visible[at] == 0 : column >= view_.columns) set(list, row, column);
        }
    cells.bits.words = words_.data();
  }

  void set(int list, int row, int column) {
    const auto& cells = view_.cells;
    const auto bit = [](int i) { return 1U << (i % 8 / 2 * 8 + i % 32 / 8 * 2 + i % 2); };  // in the order of fragments
    const auto cell = (static_cast<std::size_t>(list) * cells.rows + row / kCell) * cells.columns + column / kCell;
    std::uint32_t* words = words_.data() + cell * DeviceBits::kCellWords;
    words[column % kCell / 32 * kCell + row % kCell] |= bit(column);
    words[DeviceBits::kCellWords / 2 + row % kCell / 32 * kCell + column % kCell] |= bit(row);
  }

  MaskShape shape_;
  std::vector<std::int32_t> ends_[4];
  std::vector<std::uint32_t> words_;
  cuda::MaskView view_{};
};

/// Which tiles a kernel visits.
class HostMap {
 public:
  HostMap(const Mask& mask, TileShape tile, MapSide side, Visit visit, int query_heads) {
    const TileSchedule made = schedule(mask.lowered(), tile);
    const MaskShape& shape = mask.shape();
    const auto tiles = [](std::int64_t scores, std::int64_t of_tile) {
      return static_cast<int>((scores + of_tile - 1) / of_tile);
    };
    const int rows = tiles(shape.rows, tile.rows), columns = tiles(shape.columns, tile.columns);
    const bool by_rows = side == MapSide::rows;
    view_.outer_tiles = by_rows ? rows : columns;
    view_.inner_tiles = by_rows ? columns : rows;
    view_.lines = view_.outer_tiles;
    view_.words = tiles(view_.inner_tiles, 32);
    view_.batch = static_cast<int>(shape.batch);
    view_.heads = static_cast<int>(shape.heads);
    view_.head_ratio = query_heads / view_.heads;
    view_.ragged = by_rows && shape.columns % tile.columns != 0;
    view_.visit_all = visit == Visit::all;
    words_ = check::words_of(by_rows ? made.rows() : made.columns(), view_.all_outer_tiles(), view_.words);
    view_.tiles = words_.data();
  }
  HostMap(const HostMap&) = delete;
  HostMap& operator=(const HostMap&) = delete;

  const cuda::TileMapView& view() const { return view_; }

 private:
  std::vector<std::uint32_t> words_;
  cuda::TileMapView view_{};
};

/// What kernels that walk row tiles are told.
inline cuda::RowArguments row_arguments(const Problem& problem, const HostMask& mask, const HostMap& map,
                                        const cuda::ScoreArguments& score) {
  cuda::RowArguments arguments{};
  arguments.batch = static_cast<int>(problem.batch);
  arguments.query_length = static_cast<int>(problem.query_length);
  arguments.key_length = static_cast<int>(problem.key_length);
  arguments.query_heads = static_cast<int>(problem.query_heads);
  arguments.head_ratio = static_cast<int>(problem.query_heads / problem.kv_heads);
  arguments.score = score;
  arguments.section_heads = arguments.head_ratio;
  arguments.map = map.view();
  arguments.items = arguments.batch * arguments.query_heads * arguments.map.outer_tiles;
  arguments.mask = mask.view();
  arguments.query_units.tokens = arguments.query_length;
  arguments.key_units.tokens = arguments.key_length;
  return arguments;
}

/// What dropout depends on in calls of the emulator.
inline constexpr DropoutState kDropoutState{.seed = 0x0FEDCBA987654321, .offset = 7};

/// `place`: a packed DropoutPlace, or empty.
inline cuda::ScoreArguments score_arguments(const Problem& problem, std::span<const std::int32_t> place = {},
                                            const TensorView& sinks = {}, const AlibiTensors& alibi = {},
                                            const BiasTensor& bias = {}) {
  return cuda::score_arguments(problem,
                               {.executor = serial_executor(),
                                .workers = 1,
                                .workspace = nullptr,
                                .dropout = kDropoutState,
                                .dropout_place = dropout_tables(problem, place)},
                               sinks, alibi, bias);
}

/// Of a problem that is a part of one with more heads, rows and columns, whose rows and columns from multiples of
/// `tile` on follow one another there.
inline std::vector<std::int32_t> some_dropout_place(const Problem& problem, std::int64_t tile) {
  DropoutPlace place{.first_head = 3, .heads = problem.query_heads + 5};
  for (std::int64_t i = 0; 8 * i < problem.query_length; ++i)
    place.row_eights.push_back(static_cast<std::int32_t>(i + 8 * i / tile * 11 + 1));
  for (std::int64_t i = 0; 8 * i < problem.key_length; ++i)
    place.column_eights.push_back(static_cast<std::int32_t>(i + 8 * i / tile * 7 + 2));
  return pack(place, problem);
}

/// Where a tensor's numbers are, for Launch::readable.
inline std::array<const std::byte*, 2> range_of(const TensorView& tensor) {
  std::int64_t size = 1;
  for (int axis = 0; axis < tensor.rank; ++axis) size *= tensor.shape[static_cast<std::size_t>(axis)];
  const auto* begin = static_cast<const std::byte*>(tensor.data);
  return {begin, begin + static_cast<std::size_t>(size) * size_in_bytes(tensor.dtype)};
}

}  // namespace flashmask::emulator
