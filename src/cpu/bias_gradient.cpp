// SPDX-License-Identifier: Apache-2.0
#include "cpu/bias_gradient.h"

#include <algorithm>
#include <cstring>

#include "cpu/elements.h"
#include "plan/bias_rows.h"

namespace flashmask::cpu {
namespace {

constexpr std::int64_t kRows = kBackwardRows, kColumns = kBackwardColumns, kTile = kRows * kColumns;
static_assert(kRows == kColumns, "tiles on a diagonal hold the same distances");
/// Distances between the rows and the columns of a tile, −127 to 127, and one to fill up.
constexpr std::int64_t kBand = kRows + kColumns;

/// Diagonals of tiles.
std::int64_t bands_of(const Problem& problem) {
  return std::max<std::int64_t>(
      tiles_of(problem.query_length, kBackwardRows) + tiles_of(problem.key_length, kBackwardColumns) - 1, 0);
}

/// Returns the run of one tile alone, of the kind that it has in `runs`; an empty run where it is not among them.
Run run_of(RunList runs, std::int64_t tile) {
  for (std::int64_t i = 0; i < runs.count; ++i) {
    Run run = runs.runs[i];
    if (run.begin > tile || tile >= run.end) continue;
    run.begin = static_cast<std::int32_t>(tile);
    run.end = run.begin + 1;
    return run;
  }
  return {};
}

/// One call.
class BiasSums {
 public:
  BiasSums(const Plan& plan, const BackwardTensors& tensors, float* memory, Executor& executor, int workers,
           const AddTiles& add)
      : plan_(plan),
        problem_(plan.problem()),
        to_(tensors.grad_bias),
        shift_(problem_.key_length - problem_.query_length + tensors.bias.origin),
        executor_(executor),
        workers_(workers),
        add_(add),
        tiles_(memory),
        bands_(memory + workers * kTile) {}

  void run() const {
    const std::int64_t lists = to_.shape[0] * to_.shape[1];
    if (problem_.change.bias() == ScoreBias::distances && to_.shape[2] == 1) {
      const std::int64_t bands = bands_of(problem_);
      each(lists * bands, [&](std::int64_t task, int worker) { sum_band(task / bands, task % bands, worker); });
      each(lists, [&](std::int64_t list, int) { join_bands(list); });
    } else {
      if (problem_.change.bias() == ScoreBias::distances)
        each(lists * to_.shape[2],
             [&](std::int64_t row, int) { clear_bias_row(to_, row / to_.shape[2], row % to_.shape[2]); });
      const std::int64_t row_tiles = to_.shape[2] == 1 ? 1 : tiles_of(problem_.query_length, kBackwardRows);
      const std::int64_t column_tiles = tiles_of(problem_.key_length, kBackwardColumns);
      each(lists * row_tiles * column_tiles, [&](std::int64_t task, int worker) {
        sum_tile(task / column_tiles / row_tiles, task / column_tiles % row_tiles, task % column_tiles, worker);
      });
    }
  }

 private:
  template <class Body>
  void each(std::int64_t tasks, const Body& body) const {
    for_each_task(executor_, workers_, tasks, body);
  }

  /// Calls body(batch entry, query head) for all that share a list of values, in order.
  template <class Body>
  void for_each_head(std::int64_t list, const Body& body) const {
    const std::int64_t entry = list / to_.shape[1], head = list % to_.shape[1];
    const bool all_entries = to_.shape[0] == 1, all_heads = to_.shape[1] == 1;
    for (std::int64_t b = all_entries ? 0 : entry; b < (all_entries ? problem_.batch : entry + 1); ++b)
      for (std::int64_t h = all_heads ? 0 : head; h < (all_heads ? problem_.query_heads : head + 1); ++h) body(b, h);
  }

  float* cleared_tile(int worker) const {
    float* const tile = tiles_ + worker * kTile;
    std::fill_n(tile, kTile, 0.0F);
    return tile;
  }

  RunList rows_of(std::int64_t batch, std::int64_t head, std::int64_t column_tile) const {
    return HeadMask(plan_, Direction::backward, batch, head).column_runs(column_tile);
  }

  void add_one(std::int64_t batch, std::int64_t head, std::int64_t row_tile, std::int64_t column_tile, int worker,
               float* sum) const {
    const Run run = run_of(rows_of(batch, head, column_tile), row_tile);
    if (run.begin < run.end) add_({batch, head, column_tile}, {&run, 1}, worker, sum);
  }

  /// Sums a tile of scores up, or all tiles of a column where rows share their values, and writes the gradient.
  void sum_tile(std::int64_t list, std::int64_t row_tile, std::int64_t column_tile, int worker) const {
    float* const sum = cleared_tile(worker);
    const bool of_all_rows = to_.shape[2] == 1;
    for_each_head(list, [&](std::int64_t batch, std::int64_t head) {
      if (!of_all_rows) return add_one(batch, head, row_tile, column_tile, worker, sum);
      const RunList rows = rows_of(batch, head, column_tile);
      if (rows.count > 0) add_({batch, head, column_tile}, rows, worker, sum);
    });
    const std::int64_t row0 = of_all_rows ? 0 : row_tile * kRows, column0 = column_tile * kColumns;
    if (of_all_rows) {
      for (std::int64_t r = 1; r < kRows; ++r)
        for (std::int64_t c = 0; c < kColumns; ++c) sum[c] += sum[r * kColumns + c];
    }
    const std::int64_t rows = std::min(kRows, to_.shape[2] - row0);
    for (std::int64_t r = 0; r < rows; ++r) write(list, row0 + r, column0, sum + r * kColumns);
  }

  /// Sums up the tiles of one diagonal, and then along its diagonals.
  void sum_band(std::int64_t list, std::int64_t band, int worker) const {
    float* const sum = cleared_tile(worker);
    const std::int64_t row_tiles = tiles_of(problem_.query_length, kBackwardRows);
    const std::int64_t column_tiles = tiles_of(problem_.key_length, kBackwardColumns);
    const std::int64_t distance = band - (column_tiles - 1);
    for_each_head(list, [&](std::int64_t batch, std::int64_t head) {
      for (std::int64_t r = std::max<std::int64_t>(distance, 0); r < std::min(row_tiles, column_tiles + distance); ++r)
        add_one(batch, head, r, r - distance, worker, sum);
    });
    float* const of_band = bands_ + (list * bands_of(problem_) + band) * kBand;
    std::fill_n(of_band, kBand, 0.0F);
    for (std::int64_t r = 0; r < kRows; ++r)
      for (std::int64_t c = 0; c < kColumns; ++c) of_band[r - c + kColumns - 1] += sum[r * kColumns + c];
  }

  /// Writes the entries of a table; two diagonals of tiles at most hold scores of a distance.
  void join_bands(std::int64_t list) const {
    const std::int64_t bands = bands_of(problem_);
    const float* const of_list = bands_ + list * bands * kBand;
    for (std::int64_t entry = 0; entry < to_.shape[3]; ++entry) {
      // The distance from the first diagonal's first one, counted from 0.
      const std::int64_t place = entry - shift_ + tiles_of(problem_.key_length, kBackwardColumns) * kColumns - 1;
      const std::int64_t band = place / kRows;
      float gradient = 0;
      if (place >= kRows && band - 1 < bands) gradient += of_list[(band - 1) * kBand + kRows + place % kRows];
      if (place >= 0 && band < bands) gradient += of_list[band * kBand + place % kRows];
      write_element(to_, offset(list, 0) + entry, gradient);
    }
  }

  /// Writes the gradients of what a row adds to a tile's columns, as far as they have entries.
  void write(std::int64_t list, std::int64_t row, std::int64_t column0, const float* gradients) const {
    const std::int64_t to = offset(list, row), columns = std::min(kColumns, problem_.key_length - column0);
    if (problem_.change.bias() == ScoreBias::tensor) {
      write_elements(to_, to + column0, gradients, columns);
      return;
    }
    const std::int64_t last = row - column0 + shift_;  // that of the first column
    const std::int64_t begin = std::max<std::int64_t>(last - to_.shape[3] + 1, 0), end = std::min(columns, last + 1);
    if (begin >= end) return;
    float ascending[kColumns];
    std::reverse_copy(gradients + begin, gradients + end, ascending);
    write_elements(to_, to + last - end + 1, ascending, end - begin);
  }

  std::int64_t offset(std::int64_t list, std::int64_t row) const {
    return list / to_.shape[1] * to_.strides[0] + list % to_.shape[1] * to_.strides[1] + row * to_.strides[2];
  }

  const Plan& plan_;
  const Problem& problem_;
  const TensorView& to_;
  const std::int64_t shift_;
  Executor& executor_;
  int workers_;
  const AddTiles& add_;
  float *tiles_, *bands_;
};

}  // namespace

bool has_own_values(const Problem& problem, const TensorView& values) {
  return problem.change.bias() == ScoreBias::tensor && values.shape[0] == problem.batch &&
         values.shape[1] == problem.query_heads && values.shape[2] == problem.query_length;
}

std::size_t bias_gradient_floats(const Problem& problem, int workers) {
  if (!has_bias_tensor(problem)) return 0;
  const std::int64_t lists = problem.change.bias() == ScoreBias::distances ? problem.batch * problem.query_heads : 0;
  return static_cast<std::size_t>(workers * kTile + lists * bands_of(problem) * kBand);
}

void clear_unvisited(const TensorView& grad_bias, const HeadTile& columns, RunList visited) {
  const auto element = static_cast<std::int64_t>(size_in_bytes(grad_bias.dtype));
  const std::int64_t column0 = columns.tile * kColumns, count = std::min(kColumns, grad_bias.shape[3] - column0);
  auto* const first = static_cast<std::byte*>(head_of(grad_bias, columns.batch, columns.head)) + column0 * element;
  std::int64_t row = 0;
  const auto clear_up_to = [&](std::int64_t end) {
    for (; row < std::min(end, grad_bias.shape[2]); ++row)
      std::memset(first + row * grad_bias.strides[2] * element, 0, static_cast<std::size_t>(count * element));
  };
  for (std::int64_t i = 0; i < visited.count; ++i) {
    clear_up_to(visited.runs[i].begin * kRows);
    row = visited.runs[i].end * kRows;
  }
  clear_up_to(grad_bias.shape[2]);
}

void sum_bias_gradient(const Plan& plan, const BackwardTensors& tensors, float* memory, Executor& executor, int workers,
                       const AddTiles& add) {
  BiasSums(plan, tensors, memory, executor, workers, add).run();
}

}  // namespace flashmask::cpu
