// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm80/walk/walk_block.cuh"

namespace flashmask::cuda::sm80 {

/// What each stretch adds to a state: that of the forward behind it, or, backwards, its gradient before it.
struct SumsArguments {
  WalkArguments walk;  ///< y, z, the role's weights
  WalkStates sums;     ///< out, by place
  bool backwards;
  bool all;  ///< also of stretches without a successor, or backwards without a parent
};

template <class Shape>
struct SumsMemory {
  alignas(16) std::uint8_t y[2][Shape::InnerTile::kBytes];
  alignas(16) std::uint8_t z[2][Shape::ColumnTile::kBytes];
  alignas(16) float vector[Shape::kInner];
  StretchGates gates;
};

template <class Shape>
class SumsBlock {
  using State = WalkState<Shape>;

 public:
  __device__ __forceinline__ SumsBlock(SumsMemory<Shape>& shared, const SumsArguments& arguments)
      : shared_(shared), arguments_(arguments), item_(arguments.walk.plan, static_cast<int>(blockIdx.x)) {}

  __device__ __forceinline__ void run() {
    const WalkArguments& walk = arguments_.walk;
    const WalkStretch& own = walk.plan.stretches[item_.stretch];
    if (!arguments_.all && (arguments_.backwards ? own.parent < 0 : !own.has_successor)) return;
    StretchGates& gates = shared_.gates;
    gates.begin(walk, item_.stretch, item_.head, !arguments_.backwards);
    const int steps = gates.stretch.steps();
    const bool has_vector = walk.vector != WalkVector::none;
    typename State::Sums state = {};
    if (thread_index() < Shape::kInner) shared_.vector[thread_index()] = 0;
#pragma unroll 1
    for (int i = -1; i < steps; ++i) {  // first the copies and factors of step 0 alone
      const int next = i + 1 < steps ? step_at(i + 1, steps) : -1;
      if (i >= 0) {
        await_copies<0>();
        __syncthreads();
      }
      gates.ask(walk, next);
      commit_copies();
      if (next >= 0) ask(next, (i + 1) % 2);
      commit_copies();
      if (i >= 0) {
        const StepFactors& factors = gates.factors[step_at(i, steps) % 2];
        State::add(state, shared_address(shared_.y[i % 2]), shared_address(shared_.z[i % 2]), factors);
        if (has_vector)
          State::template add_vector<typename Shape::InnerTile>(shared_.vector, shared_.y[i % 2], factors);
      }
      await_copies<1>();
      gates.make(walk, next);
    }
    store(state, has_vector);
  }

 private:
  __device__ __forceinline__ int step_at(int i, int steps) const { return arguments_.backwards ? steps - 1 - i : i; }

  __device__ __forceinline__ void ask(int step, int buffer) const {
    const WalkArguments& walk = arguments_.walk;
    const StretchGates& gates = shared_.gates;
    const int first = gates.row_of(step);
    Shape::InnerTile::template copy<kWalkThreads>(shared_address(shared_.y[buffer]), gates.rows_of(walk.y, step), first,
                                                  thread_index());
    Shape::ColumnTile::template copy<kWalkThreads>(shared_address(shared_.z[buffer]), gates.rows_of(walk.z, step),
                                                   first, thread_index());
  }

  __device__ __forceinline__ void store(typename State::Sums& state, bool has_vector) const {
    const WalkArguments& walk = arguments_.walk;
    const WalkStates& sums = arguments_.sums;
    const std::int64_t place = walk.plan.slot(item_.stretch);
    float* const to = sums.state + place * sums.item + item_.head * sums.head;
    State::for_each(state,
                    typename State::template Matrix<float>{to, sums.key, sums.value, walk.inner_dim, walk.column_dim},
                    [](float number, float* at, bool has) {
                      if (has) *at = number;
                    });
    const int dim = 2 * static_cast<int>(thread_index());  // those that this thread added up
    if (!has_vector || dim >= walk.inner_dim) return;
    float* const vector = sums.vector + place * sums.vector_item + item_.head * sums.vector_head;
    vector[dim] = shared_.vector[dim];
    vector[dim + 1] = shared_.vector[dim + 1];
  }

  SumsMemory<Shape>& shared_;
  const SumsArguments& arguments_;
  const WalkItem item_;
};

template <class Shape>
__global__ void __launch_bounds__(kWalkThreads, 2) walk_sums_kernel(const __grid_constant__ SumsArguments arguments) {
  SumsBlock<Shape>(shared_memory<SumsMemory<Shape>>(), arguments).run();
}

}  // namespace flashmask::cuda::sm80
