// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm80/walk/walk_block.cuh"

namespace flashmask::cuda::sm80 {

/// A walk over the steps of a stretch: kForward, from first to last, or, where rows are what others see, from last to
/// first.
template <class Shape, bool kForward>
class WalkBlock {
  using T = typename Shape::Element;
  using State = WalkState<Shape>;
  using InnerTile = typename Shape::InnerTile;
  using ColumnTile = typename Shape::ColumnTile;
  using ScoreTile = typename Shape::ScoreTile;
  using Sums = typename State::Sums;
  using Result = typename State::Result;
  static constexpr int kPanels = Shape::kInner / 16, kUnits = Shape::kUnits;

 public:
  __device__ __forceinline__ WalkBlock(WalkMemory<Shape>& shared, const WalkArguments& arguments)
      : shared_(shared), arguments_(arguments), item_(arguments.plan, static_cast<int>(blockIdx.x)) {}

  __device__ __forceinline__ void run() {
    StretchGates& gates = shared_.gates;
    gates.begin(arguments_, item_.stretch, item_.head, false);
    const int steps = gates.stretch.steps();
    ask_rows(step_at(0, steps));
    Sums state;
    load(state);
#pragma unroll 1
    for (int i = -1; i < steps; ++i) {  // first the copies and factors of step 0 alone
      const int step = step_at(i, steps), next = i + 1 < steps ? step_at(i + 1, steps) : -1;
      if (i >= 0) {
        await_copies<0>();
        __syncthreads();
      }
      ask_columns(i >= 0 ? step : -1, next);
      ask_summed(next, (i + 1) % 2);
      if (i >= 0)
        visit(state, step, i % 2, next);
      else
        await_copies<1>();
      gates.make(arguments_, next);
    }
  }

 private:
  static __device__ __forceinline__ int step_at(int i, int steps) { return kForward ? i : steps - 1 - i; }
  /// Whether rows, or blocks of 16, see others, or are seen by them.
  static __device__ __forceinline__ constexpr bool meets(int rows, int summed) {
    return kForward ? summed <= rows : summed >= rows;
  }
  /// The 16 rows whose scores the warp computes. Of two blocks on a multiprocessor one counts from the end, since the
  /// scores of late rows are more.
  __device__ __forceinline__ int own_rows() const {
    const int warp = State::warp();
    return blockIdx.x % 2 == 0 ? warp : Shape::kWarps - 1 - warp;
  }

  /// The memory of walks with a counterpart, where there is one.
  __device__ __forceinline__ CounterpartMemory<Shape>& more() const {
    return static_cast<CounterpartMemory<Shape>&>(shared_);
  }

  // Copies, each a group of its own. step: −1 where there is none.

  template <class Tile>
  __device__ __forceinline__ void ask(std::uint8_t* tile, const WalkTensor& tensor, int step) const {
    const StretchGates& gates = shared_.gates;
    Tile::template copy<kWalkThreads>(shared_address(tile), gates.rows_of(tensor, step), gates.row_of(step),
                                      thread_index());
  }
  /// Copies what is read in the first part of a step.
  __device__ __forceinline__ void ask_rows(int step) const {
    if (step >= 0) {
      ask<InnerTile>(shared_.x, arguments_.x, step);
      if (arguments_.counterpart.rows.data != nullptr)
        ask<ColumnTile>(more().counterpart, arguments_.counterpart, step);
    }
    commit_copies();
  }
  /// Copies what is read in both parts.
  __device__ __forceinline__ void ask_summed(int step, int buffer) const {
    if (step >= 0) ask<InnerTile>(shared_.y[buffer], arguments_.y, step);
    commit_copies();
  }
  /// Copies what is read in the second part, and the gates of the next step.
  __device__ __forceinline__ void ask_columns(int step, int next) const {
    if (step >= 0 && !arguments_.only_divisors) ask<ColumnTile>(shared_.z, arguments_.z, step);
    shared_.gates.ask(arguments_, next);
    commit_copies();
  }

  // The state.

  __device__ __forceinline__ bool inner_is_key() const {
    return arguments_.role == WalkRole::output || arguments_.role == WalkRole::value_gradient;
  }

  /// Loads the state that the walk begins with.
  __device__ __forceinline__ void load(Sums& state) const {
    const WalkStretch& own = shared_.gates.stretch;
    const bool linked = arguments_.linked_are_own ? own.has_successor || arguments_.all_have_own : own.parent >= 0;
    const WalkStates& from = linked ? arguments_.linked : arguments_.given;
    const bool exists = from.state != nullptr;
    const std::int64_t place =
        !linked ? own.root : arguments_.plan.slot(arguments_.linked_are_own ? item_.stretch : own.parent);
    const std::int64_t inner_stride = inner_is_key() ? from.key : from.value,
                       column_stride = inner_is_key() ? from.value : from.key;
    const float* const matrix = from.state + place * from.item + item_.head * from.head;
    State::for_each(state,
                    typename State::template Matrix<const float>{
                        matrix, inner_stride, column_stride, exists ? arguments_.inner_dim : 0, arguments_.column_dim},
                    [](float& number, const float* at, bool has) { number = has ? *at : 0; });
    if (arguments_.vector == WalkVector::none) return;
    const bool of_inner = arguments_.vector == WalkVector::inner;
    const int dim = static_cast<int>(thread_index());
    if (dim >= (of_inner ? Shape::kInner : Shape::kColumns)) return;
    const float* const vector = from.vector + place * from.vector_item + item_.head * from.vector_head;
    shared_.vector[dim] = exists && dim < (of_inner ? arguments_.inner_dim : arguments_.column_dim) ? vector[dim] : 0;
  }

  /// The number of a step where states are kept.
  __device__ __forceinline__ std::int64_t kept(int step) const {
    return shared_.gates.number_of(arguments_.plan, step);
  }

  __device__ __forceinline__ void keep(const Sums& state, int step) const {
    uint4* const to = arguments_.states + kept(step) * (kUnits * kPanels * kWalkThreads) + thread_index();
#pragma unroll
    for (int i = 0; i < kUnits * kPanels; ++i) {
      std::uint32_t words[4];
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const float(&numbers)[4] = state[i / kPanels][i % kPanels * 2 + word / 2];
        words[word] = pack<__nv_bfloat16>(numbers[word % 2 * 2], numbers[word % 2 * 2 + 1]);
      }
      __stcs(to + i * kWalkThreads, make_uint4(words[0], words[1], words[2], words[3]));
    }
    if (arguments_.vector != WalkVector::none && thread_index() < Shape::kColumns)
      arguments_.state_vectors[kept(step) * Shape::kColumns + thread_index()] = shared_.vector[thread_index()];
  }

  /// Returns the thread's part of the product of what keep() left and the state here.
  __device__ __forceinline__ float product_with_kept(const Sums& state, int step) const {
    const uint4* const from = arguments_.states + kept(step) * (kUnits * kPanels * kWalkThreads) + thread_index();
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kUnits * kPanels; ++i) {
      const uint4 four = __ldcs(from + i * kWalkThreads);
      const std::uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const float(&numbers)[4] = state[i / kPanels][i % kPanels * 2 + word / 2];
        const float2 other = unpack<__nv_bfloat16>(words[word]);
        sum += numbers[word % 2 * 2] * other.x + numbers[word % 2 * 2 + 1] * other.y;
      }
    }
    if (arguments_.vector != WalkVector::none && thread_index() < Shape::kColumns)
      sum += arguments_.state_vectors[kept(step) * Shape::kColumns + thread_index()] * shared_.vector[thread_index()];
    return sum;
  }

  // A step.

  __device__ __forceinline__ void visit(Sums& state, int step, int buffer, int next) {
    StepFactors& factors = shared_.gates.factors[step % 2];
    const std::uint32_t x = shared_address(shared_.x), y = shared_address(shared_.y[buffer]),
                        z = shared_address(shared_.z);
    score(x, y, factors, step);
    Result out;
    if (!arguments_.only_divisors) {
      State::read(out, state, x);
      scale_from_state(out, factors);
      if (arguments_.dots != nullptr) add_dots(out);
      if (arguments_.across != nullptr) add_across(state, step);
    }
    await_copies<1>();  // of z: the next step's copies may still come
    __syncthreads();
    ask_rows(next);
    if (!arguments_.only_divisors) {
      add_scores(out, z);
      store(out, factors, step);
      write_sums(factors, step);
      if (kForward && arguments_.states != nullptr) keep(state, step);
    }
    if (next < 0) return;
    if (!arguments_.only_divisors) State::add(state, y, z, factors);
    if (arguments_.vector == WalkVector::none) return;
    if (kForward && arguments_.states != nullptr) __syncthreads();  // the vector is being kept
    if (arguments_.vector == WalkVector::inner)
      State::template add_vector<InnerTile>(shared_.vector, shared_.y[buffer], factors);
    else
      State::template add_vector<ColumnTile>(shared_.vector, shared_.z, factors);
  }

  /// Computes the weighted scores of the warp's rows, and what they are divided by where they are.
  __device__ __forceinline__ void score(std::uint32_t x, std::uint32_t y, StepFactors& factors, int step) {
    const int block = own_rows(), lane = lane_index(), row = 16 * block + lane / 4, quad = lane % 4;
    const std::uint32_t a = x + InnerTile::lane_rows() + InnerTile::step(16 * block, 0),
                        b = y + InnerTile::lane_columns();
    float s[8][4];
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      std::uint32_t rows[4];
      load_matrices(rows, a + InnerTile::step(0, panel));
#pragma unroll
      for (int sixteen = 0; sixteen < 4; ++sixteen) {  // all: a branch would cost more than the products that it saves
        std::uint32_t summed[4];
        load_matrices(summed, b + InnerTile::step(16 * sixteen, panel));
        multiply<T>(s[2 * sixteen], rows, summed[0], summed[1], panel == 0);
        multiply<T>(s[2 * sixteen + 1], rows, summed[2], summed[3], panel == 0);
      }
    }
    float sums[2] = {};
    weigh(s, sums, factors, block, row, quad);
    if (arguments_.vector == WalkVector::inner) divide_rows(factors, step, row, sums, a);
  }

  /// Finds what the warp's rows, whose fragments are at `rows`, are divided by from the thread's parts of the sums.
  __device__ __forceinline__ void divide_rows(StepFactors& factors, int step, int row, const float (&within)[2],
                                              std::uint32_t rows) const {
    float from_state[2] = {};
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      std::uint32_t own[4];
      load_matrices(own, rows + InnerTile::step(0, panel));
      add_products(from_state, own, 16 * panel + lane_index() % 4 * 2);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = row + 8 * half;
      float sum = within[half] + factors.from[token] * from_state[half];
      sum += __shfl_xor_sync(~0U, sum, 1);
      sum += __shfl_xor_sync(~0U, sum, 2);
      if (lane_index() % 4 == 0) divide(factors, step, token, sum);
    }
  }

  /// Adds to `sums` the products of two words of each of two rows of x with the vector from `dim` on.
  __device__ __forceinline__ void add_products(float (&sums)[2], const std::uint32_t (&rows)[4], int dim) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 numbers = unpack<T>(rows[i]);
      const float* const vector = shared_.vector + dim + i / 2 * 8;
      sums[i % 2] += numbers.x * vector[0] + numbers.y * vector[1];
    }
  }

  /// Turns products into weighted scores, which become a tile in shared memory, and adds those of a row up.
  __device__ __forceinline__ void weigh(float (&s)[8][4], float (&sums)[2], const StepFactors& factors, int block,
                                        int row, int quad) {
    float high[2], low[2], pair[2], extra[2];  // of the thread's two rows
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = row + 8 * half;
      high[half] = factors.rows_high[token];
      low[half] = factors.rows_low[token];
      pair[half] = factors.pair[token];
      extra[half] = factors.pair_extra[token];
    }
#pragma unroll
    for (int sixteen = 0; sixteen < 4; ++sixteen) {
      if (!meets(block, sixteen)) continue;
      std::uint32_t packed[1][1][4];
#pragma unroll
      for (int eight = 0; eight < 2; ++eight) {
        float(&numbers)[4] = s[2 * sixteen + eight];
        const int first = 16 * sixteen + 8 * eight + 2 * quad;
        const float2 summed_high = two_of(factors.summed_high + first), summed_low = two_of(factors.summed_low + first);
        float2 pairs{}, extras{};  // of the summed tokens
        if (!kForward) pairs = two_of(factors.pair + first), extras = two_of(factors.pair_extra + first);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int half = i / 2;
          const bool second = i % 2 != 0;
          const float exponent = (high[half] - (second ? summed_high.y : summed_high.x)) +
                                 (low[half] - (second ? summed_low.y : summed_low.x));
          const float of_pair = kForward ? pair[half]
                                : second ? pairs.y
                                         : pairs.x,
                      more = kForward ? extra[half]
                             : second ? extras.y
                                      : extras.x;
          const float score = exp2_approximate(exponent) * (of_pair * numbers[i] + more);
          const bool visible = sixteen != block || meets(row + 8 * half, first + i % 2);
          numbers[i] = visible ? score : 0;
          sums[half] += numbers[i];
        }
        packed[0][0][2 * eight] = pack<T>(numbers[0], numbers[1]);
        packed[0][0][2 * eight + 1] = pack<T>(numbers[2], numbers[3]);
      }
      store_units<ScoreTile>(shared_.scores, packed, 16 * block, 16 * sixteen);
    }
  }

  __device__ __forceinline__ void divide(StepFactors& factors, int step, int token, float sum) const {
    const std::int64_t at = shared_.gates.number_of(arguments_.plan, step) * kWalkTokens + token;
    const WalkDivisors& to = arguments_.divisors;
    if (arguments_.adds_sums) sum += to.factor[at];
    const float bound = factors.from_extra[token], size = fabsf(sum);
    const float factor = 1 / (size < bound ? bound : size);  // NaN where the sum is
    factors.out[token] = factor;
    if (!arguments_.only_divisors) return;
    to.factor[at] = arguments_.leaves_sums ? sum : factor;
    if (to.gradient != nullptr) to.gradient[at] = size < bound ? 0 : sum < 0 ? factor : -factor;
  }

  /// Completes the part of the result that comes from the state.
  __device__ __forceinline__ void scale_from_state(Result& out, const StepFactors& factors) const {
    const int row = lane_index() / 4;
#pragma unroll
    for (int half = 0; half < 8; ++half) {
      const float factor = factors.from[row + 8 * half];
#pragma unroll
      for (int eight = 0; eight < 2 * kUnits; ++eight)
#pragma unroll
        for (int i = 0; i < 2; ++i) out[half / 2][eight][half % 2 * 2 + i] *= factor;
    }
    if (arguments_.vector != WalkVector::columns) return;
#pragma unroll
    for (int eight = 0; eight < 2 * kUnits; ++eight) {
      const float2 vector = two_of(shared_.vector + State::own_column() + 8 * eight + lane_index() % 4 * 2);
#pragma unroll
      for (int half = 0; half < 8; ++half) {
        const float extra = factors.from_extra[row + 8 * half];
        float(&numbers)[4] = out[half / 2][eight];
        numbers[half % 2 * 2] += extra * vector.x;
        numbers[half % 2 * 2 + 1] += extra * vector.y;
      }
    }
  }

  /// Leaves the products of the counterpart's rows and the state's part of the result, over the warp's columns.
  __device__ __forceinline__ void add_dots(const Result& out) {
    const int lane = lane_index();
    const std::uint32_t a =
        shared_address(more().counterpart) + ColumnTile::lane_rows() + ColumnTile::step(0, State::own_unit());
#pragma unroll
    for (int sixteen = 0; sixteen < 4; ++sixteen) {
      float sums[2] = {};
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
        std::uint32_t words[4];
        load_matrices(words, a + ColumnTile::step(16 * sixteen, unit));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float(&numbers)[4] = out[sixteen][2 * unit + i / 2];
          const float2 other = unpack<T>(words[i]);
          sums[i % 2] += numbers[i % 2 * 2] * other.x + numbers[i % 2 * 2 + 1] * other.y;
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum = sums[half];
        sum += __shfl_xor_sync(~0U, sum, 1);
        sum += __shfl_xor_sync(~0U, sum, 2);
        if (lane % 4 == 0) more().dots[State::warp()][16 * sixteen + 8 * half + lane / 4] = sum;
      }
    }
  }

  __device__ __forceinline__ void add_across(const Sums& state, int step) {
    float sum = product_with_kept(state, step);
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) sum += __shfl_xor_sync(~0U, sum, distance);
    if (lane_index() == 0) more().across[State::warp()] = sum;
  }

  /// Stores what add_dots() and add_across() left, summed over the warps.
  __device__ __forceinline__ void write_sums(const StepFactors& factors, int step) const {
    const unsigned thread = thread_index();
    const std::int64_t at = shared_.gates.number_of(arguments_.plan, step);
    if (arguments_.dots != nullptr && thread < kWalkTokens) {
      float sum = 0;
#pragma unroll
      for (int warp = 0; warp < Shape::kWarps; ++warp) sum += more().dots[warp][thread];
      arguments_.dots[at * kWalkTokens + thread] = sum * factors.out[thread];
    }
    if (arguments_.across != nullptr && thread == 0) {
      float sum = 0;
#pragma unroll
      for (int warp = 0; warp < Shape::kWarps; ++warp) sum += more().across[warp];
      arguments_.across[at] = sum * factors.gain;
    }
  }

  /// Computes out += scores z.
  __device__ __forceinline__ void add_scores(Result& out, std::uint32_t z) const {
    const std::uint32_t a = shared_address(shared_.scores) + ScoreTile::lane_rows(),
                        b = z + ColumnTile::lane_rows() + ColumnTile::step(0, State::own_unit());
#pragma unroll
    for (int summed = 0; summed < 4; ++summed) {
      std::uint32_t columns[kUnits][4];
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit)
        load_matrices_transposed(columns[unit], b + ColumnTile::step(16 * summed, unit));
#pragma unroll
      for (int rows = 0; rows < 4; ++rows) {
        if (!meets(rows, summed)) continue;
        std::uint32_t scores[4];
        load_matrices(scores, a + ScoreTile::step(16 * rows, summed));
#pragma unroll
        for (int eight = 0; eight < 2 * kUnits; ++eight) {
          const std::uint32_t* const two = columns[eight / 2] + eight % 2 * 2;
          multiply<T>(out[rows][eight], scores, two[0], two[1]);
        }
      }
    }
  }

  /// Stores the warp's columns of all rows.
  __device__ __forceinline__ void store(const Result& out, const StepFactors& factors, int step) const {
    const StretchGates& gates = shared_.gates;
    const int row = lane_index() / 4, tokens = gates.tokens_of(step), column = State::own_column();
    std::uint16_t* const to = arguments_.out + gates.stretch.batch * arguments_.out_batch +
                              gates.row_of(step) * arguments_.out_row + gates.head * arguments_.out_head + column;
#pragma unroll
    for (int sixteen = 0; sixteen < 4; ++sixteen) {
      const int first = 16 * sixteen + row;
      const float factor[2] = {factors.out[first], factors.out[first + 8]};
      store_rows(reinterpret_cast<const float(&)[8 * kUnits]>(out[sixteen][0][0]), factor, reinterpret_cast<T*>(to),
                 arguments_.out_row, first, tokens, arguments_.column_dim - column);
    }
  }

  WalkMemory<Shape>& shared_;
  const WalkArguments& arguments_;
  const WalkItem item_;
};

template <class Shape, bool kForward>
__global__ void __launch_bounds__(kWalkThreads, Shape::kBlocks)
    walk_kernel(const __grid_constant__ WalkArguments arguments) {
  WalkBlock<Shape, kForward>(shared_memory<WalkMemory<Shape>>(), arguments).run();
}

}  // namespace flashmask::cuda::sm80
