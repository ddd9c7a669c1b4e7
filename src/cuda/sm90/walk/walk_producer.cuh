// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/gate_arithmetic.cuh"
#include "cuda/sm90/walk/walk_memory.cuh"

/// The producer group of a walk: a class for each of its warps.
namespace flashmask::cuda::sm90 {

/// Returns a visit. Four lie in a line of the cache, and the line after the next is asked for.
template <class Arguments>
__device__ __forceinline__ const WalkVisit& visit_at(const Arguments& arguments, int number, int end) {
  constexpr int kPerLine = 128 / sizeof(WalkVisit);
  if (number + 2 * kPerLine < end) prefetch_line(arguments.visits + number + 2 * kPerLine);
  return arguments.visits[number];
}

/// Asks for tiles, by one thread.
template <class Shape>
__device__ __forceinline__ void copy_tiles(WalkMemory<Shape>& shared, const WalkArguments& arguments, int begin,
                                           int end) {
  const auto copy = [](std::uint8_t* tile, const CUtensorMap* map, std::uint64_t* barrier, int column, int panels,
                       bool once, int head, const WalkVisit& visit) {
#pragma unroll
    for (int panel = 0; panel < panels; ++panel) {
      std::uint8_t* const to = tile + panel * Shape::kTilePanel;
      if (once)
        copy_box<Reads::once>(to, map, barrier, column + panel * kPanel, head, visit.row, visit.batch);
      else
        copy_box<Reads::again>(to, map, barrier, column + panel * kPanel, head, visit.row, visit.batch);
    }
  };
  constexpr int kInnerPanels = Shape::kInner / kPanel, kColumnPanels = Shape::kColumns / kPanel;
  constexpr int kYzBytes = Shape::kInnerBytes + (Shape::kGates ? 2 : Shape::kFindsRows ? 0 : 1) * Shape::kColumnBytes;
  RingCounter<Shape::kStages> at;
#pragma unroll 1
  for (int i = begin; i < end; ++i) {
    const WalkVisit visit = visit_at(arguments, i, end);
    const int inner_head = visit.head / arguments.inner_group, column_head = visit.head / arguments.column_group;
    std::uint64_t *const yz = &shared.yz_full[at.slot()], *const x = &shared.x_full[at.slot()];
    barrier_wait(&shared.yz_empty[at.slot()], at.phase() ^ 1);
    const int inner = Shape::kInner * visit.inner_slice, column = Shape::kColumns * visit.column_slice;
    barrier_arrive_expecting(yz, kYzBytes);
    copy(shared.y[at.slot()], &arguments.maps.y, yz, inner, kInnerPanels, arguments.once, inner_head, visit);
    if constexpr (!Shape::kFindsRows)
      copy(shared.z[at.slot()], &arguments.maps.z, yz, column, kColumnPanels, true, column_head, visit);
    if constexpr (Shape::kGates)
      copy(shared.counterpart[at.slot()], &arguments.maps.counterpart, yz, column, kColumnPanels, true, column_head,
           visit);
    barrier_wait(&shared.x_empty[at.slot()], at.phase() ^ 1);
    shared.visits[at.slot()] = visit;
    barrier_arrive_expecting(x, Shape::kInnerBytes);
    copy(shared.x[at.slot()], &arguments.maps.x, x, inner, kInnerPanels, arguments.once, inner_head, visit);
    at.advance();
  }
}

/// Makes the factors of steps, by a warp: two tokens per lane.
template <class Memory, class Arguments>
class FactorMaker {
  static constexpr bool kBack = std::is_same_v<Arguments, ReverseArguments>;

 public:
  __device__ __forceinline__ FactorMaker(Memory& shared, const Arguments& arguments) : shared_(shared), a_(arguments) {}

  __device__ __forceinline__ void run(int begin, int end) {
    Gates gates = load(a_.visits[begin]);
#pragma unroll 1
    for (int i = begin; i < end; ++i) {
      const Gates own = gates;
      if (i + 1 < end) gates = load(visit_at(a_, i + 1, end));
      make(a_.visits[i], own, i + 1 == end);
      slot_.advance();
    }
  }

 private:
  struct Gates {
    float forget[2], input[2];
  };

  __device__ __forceinline__ Gates load(const WalkVisit& next) const {
    // Held in registers where there are some.
    std::conditional_t<kBack, const WalkVisit, const WalkVisit&> visit = next;
    Gates gates{};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = 2 * lane_index() + i;
      if (token >= visit.tokens) continue;
      gates.forget[i] = a_.log_forget.of(visit.batch, visit.row + token, visit.head);
      gates.input[i] = a_.log_input.of(visit.batch, visit.row + token, visit.head);
    }
    return gates;
  }

  __device__ __forceinline__ bool has_rows() const {
    return kBack ? a_.rows.result != nullptr : Memory::kAdds && a_.rows.given;
  }

  __device__ __forceinline__ double* kept_scale(int slot) const {
    return a_.slot_scales + (static_cast<std::int64_t>(blockIdx.x) * a_.slots_per_block + slot) * 32 + lane_index();
  }

  /// What earlier kernels left of a step: the scale of the state before it, and the numbers of the lane's two rows.
  struct Left {
    double scale;
    float2 result, divisor;
  };

  __device__ __forceinline__ Left load_left(const WalkVisit& visit) const {
    Left left{};
    if (kBack && a_.scaled) left.scale = a_.rows.scale[a_.parts.at(visit)];
    if (!has_rows()) return left;
    const std::int64_t at = a_.parts.first_row(visit) + 2 * lane_index();
    left.result = *reinterpret_cast<const float2*>(a_.rows.result + at);
    // Sums of weights are sums over keys alone: one slice of values adds their gradients.
    if (visit.inner_slice == 0) left.divisor = *reinterpret_cast<const float2*>(a_.rows.divisor + at);
    return left;
  }

  /// Returns the scale of the state before a step; scale_ is that behind the step before. The walk back reads what the
  /// other one left.
  __device__ __forceinline__ double scale_before(const WalkVisit& visit, const Left& left) const {
    if constexpr (kBack) {
      return left.scale;
    } else {
      const double scale = found_scale(visit);
      if (a_.rows.scale != nullptr && lane_index() == 0) a_.rows.scale[a_.parts.at(visit)] = scale;
      return scale;
    }
  }
  __device__ __forceinline__ double found_scale(const WalkVisit& visit) const {
    if (visit.from == kGoesOn) return scale_;
    if (visit.from >= 0) return *kept_scale(visit.from);
    if (a_.initial_scale.data == nullptr) return 0;
    const WalkScales& given = a_.initial_scale;
    return given.data[(kFirstRoot - visit.from) * given.item + visit.head * given.head] * kLog2E;
  }

  /// Finds the largest of b(j) − l(j), negated, of the tokens up to each of the lane's two.
  __device__ __forceinline__ void find_tops(double (&tops)[2], const double (&columns)[2], int tokens) const {
    const int lane = lane_index();
    const double start = 2 * lane < tokens ? -columns[0] : -INFINITY;
    double top = 2 * lane + 1 < tokens ? larger(start, -columns[1]) : start;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const double before = __shfl_up_sync(~0U, top, distance);
      if (lane >= distance) top = larger(top, before);
    }
    const double before = __shfl_up_sync(~0U, top, 1);
    tops[0] = lane == 0 ? start : larger(before, start);
    tops[1] = top;
  }

  /// Finds the scale of the state before a step; sums and the total become less the scales of the lane's rows and of
  /// the state behind. own: the scales of rows.
  __device__ __forceinline__ void find_scales(float (&own)[2], double& before, double (&sums)[2], double& total,
                                              const WalkVisit& visit, const Left& left, const double (&columns)[2]) {
    double tops[2];
    find_tops(tops, columns, visit.tokens);
    before = scale_before(visit, left);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const double scale = at_least_zero(sums[i] + larger(before, tops[i]));
      own[i] = static_cast<float>(scale);
      if (!kBack || has_rows()) sums[i] -= scale;
    }
    scale_ = at_least_zero(total + larger(before, __shfl_sync(~0U, tops[1], 31)));
    if constexpr (!kBack) keep(visit, scale_);
    total -= scale_;
  }

  __device__ __forceinline__ void make(const WalkVisit& visit, const Gates& gates, bool last) {
    const int lane = lane_index();
    // Back, gates are added up meanwhile; the other walk has no registers for that.
    Left left{};
    if constexpr (kBack) left = load_left(visit);
    double forget[2], input[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) forget[i] = gate_powers(gates.forget[i]), input[i] = gate_powers(gates.input[i]);
    double sum = forget[0] + forget[1];
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const double before = __shfl_up_sync(~0U, sum, distance);
      if (lane >= distance) sum += before;
    }
    double sums[2] = {sum - forget[1], sum}, total = __shfl_sync(~0U, sum, 31), before = 0;
    const double columns[2] = {sums[0] - input[0], sums[1] - input[1]};
    float rows[2][2], summed[2][2], into[2], from[2], own[2] = {}, added[2] = {};
    if (a_.scaled) find_scales(own, before, sums, total, visit, left, columns);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool exists = 2 * lane + i < visit.tokens;
      if (has_rows() && exists) {
        if constexpr (!kBack) left = load_left(visit);
        own[i] = -log2f(i == 0 ? left.result.x : left.result.y);
        // Back, rows are weighed by what they were multiplied by, too.
        if (kBack) sums[i] -= own[i];
        added[i] = i == 0 ? left.divisor.x : left.divisor.y;
      }
      split(sums[i], rows[0][i], rows[1][i]);
      split(columns[i], summed[0][i], summed[1][i]);
      into[i] = exists ? power(total - columns[i]) : 0;
      from[i] = exists ? power(sums[i] + before) * a_.scale : 0;
    }
    const float gain = power(total + before);
    barrier_wait(&shared_.factors_empty[slot_.slot()], slot_.phase() ^ 1);
    WalkFactors& to = shared_.factors[slot_.slot()];
    put(to.rows_high, rows[0]);
    put(to.rows_low, rows[1]);
    put(to.summed_high, summed[0]);
    put(to.summed_low, summed[1]);
    put(to.into, into);
    put(to.from, from);
    put(to.own, own);
    if constexpr (Memory::kAdds) put(shared_.added[slot_.slot()], added);
    if (lane == 0) to.gain = gain, to.last = last, to.visit = visit;
    barrier_arrive(&shared_.factors_full[slot_.slot()]);
  }

  /// Keeps the scale behind a step where its state is kept, and gives it to the caller where a node ends.
  __device__ __forceinline__ void keep(const WalkVisit& visit, double behind) const {
    if (visit.keep >= 0) *kept_scale(visit.keep) = behind;
    const WalkScales& to = a_.final_scale;
    if (to.data != nullptr && visit.node >= 0 && visit.slice == 0 && lane_index() == 0)
      to.data[visit.node * to.item + visit.head * to.head] = static_cast<float>(behind * kLn2);
  }

  static __device__ __forceinline__ void put(float* array, const float (&two)[2]) {
    *reinterpret_cast<float2*>(array + 2 * lane_index()) = {two[0], two[1]};
  }

  Memory& shared_;
  const Arguments& a_;
  RingCounter<Memory::kSlots> slot_;
  double scale_ = 0;
};

/// Clears the rows of a tile from `tokens` on, by a warp.
template <int kColumns>
__device__ __forceinline__ void clear_tile(std::uint8_t* tile, int tokens) {
  for (int unit = lane_index(); unit < (kWalkTokens - tokens) * 8; unit += 32)
#pragma unroll
    for (int panel = 0; panel < kColumns / kPanel; ++panel)
      *reinterpret_cast<uint4*>(tile + (panel * kWalkTokens + tokens) * kPanel * 2 + unit * 16) = uint4{};
}

/// Clears the rows of y and z behind a node's end, by a warp: they are others', and their NaN must not meet a weight of
/// 0.
template <class Shape>
__device__ __forceinline__ void clear_rows(WalkMemory<Shape>& shared, const WalkArguments& arguments, int begin,
                                           int end) {
  RingCounter<Shape::kStages> at;
#pragma unroll 1
  for (int i = begin; i < end; ++i) {
    const int tokens = visit_at(arguments, i, end).tokens;
    barrier_wait(&shared.yz_full[at.slot()], at.phase());
    if (tokens < kWalkTokens) {
      clear_tile<Shape::kInner>(shared.y[at.slot()], tokens);
      if constexpr (!Shape::kFindsRows) clear_tile<Shape::kColumns>(shared.z[at.slot()], tokens);
      fence_stores_for_async();
    }
    barrier_arrive(&shared.cleared[at.slot()]);
    __syncwarp();
    if (lane_index() == 0) barrier_arrive(&shared.yz_empty[at.slot()]);
    at.advance();
  }
}

/// The producer group. The overloads that it calls are found by the memory that they share.
template <class Memory, class Arguments>
__device__ __forceinline__ void produce(Memory& shared, const Arguments& arguments, int begin, int end) {
  if (begin == end) return;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp == 0) {
    if (lane_index() == 0) copy_tiles(shared, arguments, begin, end);
  } else if (warp == 1) {
    FactorMaker(shared, arguments).run(begin, end);
  } else if (warp == 2) {
    clear_rows(shared, arguments, begin, end);
  }
}

}  // namespace flashmask::cuda::sm90
