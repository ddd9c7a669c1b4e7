// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm80/walk/walk_block.cuh"

namespace flashmask::cuda::sm80 {

/// A walk over the steps of a stretch, first to last or, where rows are what others see, last to first.
template <class Shape>
class WalkBlock {
  using T = typename Shape::Element;
  using State = WalkState<Shape>;
  using InnerTile = typename Shape::InnerTile;
  using ColumnTile = typename Shape::ColumnTile;
  using ScoreTile = typename Shape::ScoreTile;
  using Sums = typename State::Sums;
  static constexpr int kPanels = Shape::kInner / 16;

 public:
  __device__ __forceinline__ WalkBlock(WalkMemory<Shape>& shared, const WalkArguments& arguments)
      : shared_(shared), arguments_(arguments), item_(arguments, static_cast<std::int64_t>(blockIdx.x)) {}

  __device__ __forceinline__ void run() {
    StretchGates& gates = shared_.gates;
    gates.begin(arguments_, item_.stretch, item_.head, false);
    const int steps = gates.stretch.steps();
    ask_counterpart(step_at(0, steps));
    Sums state;
    load(state);
#pragma unroll 1
    for (int i = -1; i < steps; ++i) {  // first the copies and factors of step 0 alone
      const int step = step_at(i, steps), next = i + 1 < steps ? step_at(i + 1, steps) : -1;
      if (i >= 0) {
        await_copies<0>();
        __syncthreads();
        ask_columns(step);
      }
      if (next >= 0) ask_inner(next, (i + 1) % 2);
      commit_copies();
      const StretchGates::Token token = gates.read(arguments_, item_.head, next);
      if (i >= 0) visit(state, step, i % 2, next);
      gates.make(arguments_, item_.head, next, token);
    }
  }

 private:
  __device__ __forceinline__ bool forward() const { return is_forward(arguments_.role); }
  __device__ __forceinline__ int step_at(int i, int steps) const { return forward() ? i : steps - 1 - i; }
  /// Whether rows, or blocks of 16, see others, or are seen by them.
  __device__ __forceinline__ bool meets(int rows, int summed) const {
    return forward() ? summed <= rows : summed >= rows;
  }
  /// The 16 rows whose scores the warp computes. Of two blocks on a multiprocessor one counts from the end, since the
  /// scores of late rows are more.
  __device__ __forceinline__ int own_rows() const {
    const int warp = State::warp();
    return blockIdx.x % 2 == 0 ? warp : Shape::kWarps - 1 - warp;
  }

  __device__ __forceinline__ void ask_inner(int step, int buffer) const {
    const StretchGates& gates = shared_.gates;
    InnerTile::template copy<kWalkThreads>(shared_address(shared_.x[buffer]),
                                           gates.rows_of(arguments_.x, item_.head, step), gates.row_of(step),
                                           thread_index());
    InnerTile::template copy<kWalkThreads>(shared_address(shared_.y[buffer]),
                                           gates.rows_of(arguments_.y, item_.head, step), gates.row_of(step),
                                           thread_index());
  }
  __device__ __forceinline__ void ask_slice(std::uint8_t* tile, const WalkTensor& tensor, int step) const {
    Rows columns = shared_.gates.rows_of(tensor, item_.head, step);
    columns.first += item_.slice * kWalkColumns;
    columns.dim -= item_.slice * kWalkColumns;
    ColumnTile::template copy<kWalkThreads>(shared_address(tile), columns, shared_.gates.row_of(step), thread_index());
  }
  /// The copies of what is read behind the scores: a group of its own.
  __device__ __forceinline__ void ask_columns(int step) const {
    if (!arguments_.only_divisors) ask_slice(shared_.z, arguments_.z, step);
    commit_copies();
  }
  __device__ __forceinline__ void ask_counterpart(int step) const {
    if (step >= 0 && arguments_.counterpart.rows.data != nullptr)
      ask_slice(shared_.counterpart, arguments_.counterpart, step);
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
    const int first = item_.slice * kWalkColumns, columns = arguments_.column_dim - first;
    const float* const matrix = from.state + place * from.item + item_.head * from.head + first * column_stride;
    State::for_each(state,
                    typename State::template Matrix<const float>{matrix, inner_stride, column_stride,
                                                                 exists ? arguments_.inner_dim : 0, columns},
                    [](float& number, const float* at, bool has) { number = has ? *at : 0; });
    if (arguments_.vector == WalkVector::none || thread_index() >= Shape::kInner) return;
    const bool of_inner = arguments_.vector == WalkVector::inner;
    const int dim = static_cast<int>(thread_index());
    const float* const vector =
        from.vector + place * from.vector_item + item_.head * from.vector_head + (of_inner ? 0 : first);
    shared_.vector[dim] = exists && dim < (of_inner ? arguments_.inner_dim : columns) ? vector[dim] : 0;
  }

  /// Where the thread keeps its part of the state before a step, and the block that of the vector.
  __device__ __forceinline__ std::int64_t kept(int step) const {
    const std::int64_t number =
        static_cast<std::int64_t>(item_.head) * arguments_.plan.steps + shared_.gates.stretch.first_step + step;
    return number * arguments_.slices + item_.slice;
  }

  __device__ __forceinline__ void keep(const Sums& state, int step) const {
    uint4* const to = arguments_.states + kept(step) * (kPanels * kWalkThreads) + thread_index();
#pragma unroll
    for (int i = 0; i < kPanels; ++i) {
      std::uint32_t words[4];
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const float(&numbers)[4] = state[2 * i + word / 2];
        words[word] = pack<__nv_bfloat16>(numbers[word % 2 * 2], numbers[word % 2 * 2 + 1]);
      }
      __stcs(to + i * kWalkThreads, make_uint4(words[0], words[1], words[2], words[3]));
    }
    if (arguments_.vector != WalkVector::none && thread_index() < kWalkColumns)
      arguments_.state_vectors[kept(step) * kWalkColumns + thread_index()] = shared_.vector[thread_index()];
  }

  /// Returns the thread's part of the product of what keep() left and the state here.
  __device__ __forceinline__ float product_with_kept(const Sums& state, int step) const {
    const uint4* const from = arguments_.states + kept(step) * (kPanels * kWalkThreads) + thread_index();
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kPanels; ++i) {
      const uint4 four = __ldcs(from + i * kWalkThreads);
      const std::uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const float(&numbers)[4] = state[2 * i + word / 2];
        const float2 other = unpack<__nv_bfloat16>(words[word]);
        sum += numbers[word % 2 * 2] * other.x + numbers[word % 2 * 2 + 1] * other.y;
      }
    }
    if (arguments_.vector != WalkVector::none && thread_index() < kWalkColumns)
      sum += arguments_.state_vectors[kept(step) * kWalkColumns + thread_index()] * shared_.vector[thread_index()];
    return sum;
  }

  // A step.

  __device__ __forceinline__ void visit(Sums& state, int step, int buffer, int next) {
    StepFactors& factors = shared_.gates.factors[step % 2];
    const std::uint32_t x = shared_address(shared_.x[buffer]), y = shared_address(shared_.y[buffer]),
                        z = shared_address(shared_.z);
    score(x, y, factors, step);
    float out[8][4] = {};
    if (!arguments_.only_divisors) {
      State::read(out, state, x);
      scale_from_state(out, factors);
      if (arguments_.dots != nullptr) add_dots(out);
      if (arguments_.across != nullptr) add_across(state, step);
    }
    await_copies<1>();  // of z: the next step's copies may still come
    __syncthreads();
    ask_counterpart(next);
    if (!arguments_.only_divisors) {
      add_scores(out, z);
      store(out, factors, step);
      write_sums(factors, step);
      if (forward() && arguments_.states != nullptr) keep(state, step);
    }
    if (next < 0) return;
    if (!arguments_.only_divisors) State::add(state, y, z, factors);
    if (arguments_.vector == WalkVector::none) return;
    if (forward() && arguments_.states != nullptr) __syncthreads();  // the vector is being kept
    if (arguments_.vector == WalkVector::inner)
      State::template add_vector<InnerTile>(shared_.vector, shared_.y[buffer], factors);
    else
      State::template add_vector<ColumnTile>(shared_.vector, shared_.z, factors);
  }

  /// Computes the weighted scores of the warp's rows, and what they are divided by where they are.
  __device__ __forceinline__ void score(std::uint32_t x, std::uint32_t y, StepFactors& factors, int step) {
    const int block = own_rows(), lane = lane_index(), row = 16 * block + lane / 4, quad = lane % 4;
    const bool divides = arguments_.vector == WalkVector::inner;
    const std::uint32_t a = x + InnerTile::lane_rows() + InnerTile::step(16 * block, 0),
                        b = y + InnerTile::lane_columns();
    float s[8][4] = {};
    float from_state[2] = {};
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      std::uint32_t rows[4];
      load_matrices(rows, a + InnerTile::step(0, panel));
      if (divides) add_products(from_state, rows, 16 * panel + 2 * quad);
#pragma unroll
      for (int sixteen = 0; sixteen < 4; ++sixteen) {  // all: a branch would cost more than the products that it saves
        std::uint32_t summed[4];
        load_matrices(summed, b + InnerTile::step(16 * sixteen, panel));
        multiply<T>(s[2 * sixteen], rows, summed[0], summed[1]);
        multiply<T>(s[2 * sixteen + 1], rows, summed[2], summed[3]);
      }
    }
    float sums[2] = {};
    weigh(s, sums, factors, block, row, quad);
    if (divides) divide_rows(factors, step, row, sums, from_state);
  }

  /// Finds what the warp's rows are divided by from the thread's parts of the sums.
  __device__ __forceinline__ void divide_rows(StepFactors& factors, int step, int row, const float (&within)[2],
                                              const float (&from_state)[2]) const {
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
    const bool by_rows = forward();
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
        if (!by_rows) pairs = two_of(factors.pair + first), extras = two_of(factors.pair_extra + first);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int half = i / 2;
          const bool second = i % 2 != 0;
          const float exponent = (high[half] - (second ? summed_high.y : summed_high.x)) +
                                 (low[half] - (second ? summed_low.y : summed_low.x));
          const float of_pair = by_rows  ? pair[half]
                                : second ? pairs.y
                                         : pairs.x,
                      more = by_rows  ? extra[half]
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
    const float bound = factors.bound[token], size = fabsf(sum);
    const float factor = 1 / (size < bound ? bound : size);  // NaN where the sum is
    factors.out[token] = factor;
    if (!arguments_.only_divisors) return;
    const std::int64_t at =
        static_cast<std::int64_t>(item_.head) * arguments_.plan.steps + shared_.gates.stretch.first_step + step;
    arguments_.divisors.factor[at * kWalkTokens + token] = factor;
    arguments_.divisors.gradient[at * kWalkTokens + token] = size < bound ? 0 : sum < 0 ? factor : -factor;
  }

  /// Completes the part of the result that comes from the state.
  __device__ __forceinline__ void scale_from_state(float (&out)[8][4], const StepFactors& factors) const {
    const int quad = lane_index() % 4;
    const bool has_vector = arguments_.vector == WalkVector::columns;
    float vector[2] = {};
    if (has_vector) {
      vector[0] = shared_.vector[State::own_column() + lane_index() / 4];
      vector[1] = shared_.vector[State::own_column() + lane_index() / 4 + 8];
    }
#pragma unroll
    for (int eight = 0; eight < 8; ++eight) {
      const float2 factor = two_of(factors.from + 8 * eight + 2 * quad);
#pragma unroll
      for (int i = 0; i < 4; ++i) out[eight][i] *= i % 2 == 0 ? factor.x : factor.y;
      if (!has_vector) continue;
      const float2 extra = two_of(factors.from_extra + 8 * eight + 2 * quad);
#pragma unroll
      for (int i = 0; i < 4; ++i) out[eight][i] += (i % 2 == 0 ? extra.x : extra.y) * vector[i / 2];
    }
  }

  /// Leaves the products of the counterpart's rows and the state's part of the result, over the warp's columns.
  __device__ __forceinline__ void add_dots(const float (&out)[8][4]) {
    const int lane = lane_index();
    const std::uint32_t a =
        shared_address(shared_.counterpart) + ColumnTile::lane_columns() + ColumnTile::step(0, State::warp());
#pragma unroll
    for (int sixteen = 0; sixteen < 4; ++sixteen) {
      std::uint32_t words[4];
      load_matrices_transposed(words, a + ColumnTile::step(16 * sixteen, 0));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float(&numbers)[4] = out[2 * sixteen + half];
        const float2 first = unpack<T>(words[2 * half]), second = unpack<T>(words[2 * half + 1]);
        float low = numbers[0] * first.x + numbers[2] * second.x, high = numbers[1] * first.y + numbers[3] * second.y;
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) {
          low += __shfl_xor_sync(~0U, low, distance);
          high += __shfl_xor_sync(~0U, high, distance);
        }
        if (lane < 4) {
          float* const to = shared_.dots[State::warp()] + 16 * sixteen + 8 * half + 2 * lane;
          to[0] = low;
          to[1] = high;
        }
      }
    }
  }

  __device__ __forceinline__ void add_across(const Sums& state, int step) {
    float sum = product_with_kept(state, step);
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) sum += __shfl_xor_sync(~0U, sum, distance);
    if (lane_index() == 0) shared_.across[State::warp()] = sum;
  }

  /// Stores what add_dots() and add_across() left, summed over the warps.
  __device__ __forceinline__ void write_sums(const StepFactors& factors, int step) const {
    const unsigned thread = thread_index();
    const std::int64_t at =
        (static_cast<std::int64_t>(item_.slice) * arguments_.plan.heads + item_.head) * arguments_.plan.steps +
        shared_.gates.stretch.first_step + step;
    if (arguments_.dots != nullptr && thread < kWalkTokens) {
      float sum = 0;
#pragma unroll
      for (int warp = 0; warp < Shape::kWarps; ++warp) sum += shared_.dots[warp][thread];
      arguments_.dots[at * kWalkTokens + thread] = sum * factors.out[thread];
    }
    if (arguments_.across != nullptr && thread == 0) {
      float sum = 0;
#pragma unroll
      for (int warp = 0; warp < Shape::kWarps; ++warp) sum += shared_.across[warp];
      arguments_.across[at] = sum * factors.gain;
    }
  }

  /// Computes out += zᵀ scoresᵀ.
  __device__ __forceinline__ void add_scores(float (&out)[8][4], std::uint32_t z) const {
    if (forward())
      add_scores_of<true>(out, z);
    else
      add_scores_of<false>(out, z);
  }
  template <bool kForward>
  __device__ __forceinline__ void add_scores_of(float (&out)[8][4], std::uint32_t z) const {
    const std::uint32_t a = z + ColumnTile::lane_columns() + ColumnTile::step(0, State::warp()),
                        b = shared_address(shared_.scores) + ScoreTile::lane_columns();
#pragma unroll
    for (int summed = 0; summed < 4; ++summed) {
      std::uint32_t columns[4];
      load_matrices_transposed(columns, a + ColumnTile::step(16 * summed, 0));
#pragma unroll
      for (int rows = 0; rows < 4; ++rows) {
        if (kForward ? summed > rows : summed < rows) continue;
        std::uint32_t scores[4];
        load_matrices(scores, b + ScoreTile::step(16 * rows, summed));
        multiply<T>(out[2 * rows], columns, scores[0], scores[1]);
        multiply<T>(out[2 * rows + 1], columns, scores[2], scores[3]);
      }
    }
  }

  /// Stores the warp's columns of all rows. Transposed matrices leave a quad with 32 bytes of a row; it exchanges words
  /// with its like of the next rows, so that each thread stores 16 bytes.
  __device__ __forceinline__ void store(const float (&out)[8][4], const StepFactors& factors, int step) const {
    const StretchGates& gates = shared_.gates;
    const int lane = lane_index(), quad = lane % 4, tokens = gates.tokens_of(step);
    const int column = item_.slice * kWalkColumns + State::own_column() + quad % 2 * 8;
    std::uint16_t* const to = arguments_.out + gates.stretch.batch * arguments_.out_batch +
                              gates.row_of(step) * arguments_.out_row + item_.head * arguments_.out_head + column;
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int eight = 2 * pair + i / 2;
        const float2 factor = two_of(factors.out + 8 * eight + 2 * quad);
        const float(&numbers)[4] = out[eight];
        words[i] = transpose_matrix(pack<T>(numbers[i % 2 * 2] * factor.x, numbers[i % 2 * 2 + 1] * factor.y));
      }
      transpose_in_quad(words, quad);
      const int row = 8 * (2 * pair + quad / 2) + lane / 4;
      if (row < tokens && column < arguments_.column_dim)
        __stcs(reinterpret_cast<uint4*>(to + row * arguments_.out_row),
               make_uint4(words[0], words[1], words[2], words[3]));
    }
  }

  WalkMemory<Shape>& shared_;
  const WalkArguments& arguments_;
  const WalkItem item_;
};

template <class Shape>
__global__ void __launch_bounds__(kWalkThreads, 2) walk_kernel(const __grid_constant__ WalkArguments arguments) {
  WalkBlock<Shape>(shared_memory<WalkMemory<Shape>>(), arguments).run();
}

}  // namespace flashmask::cuda::sm80
