// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cuda/common/linear_slices.h"
#include "cuda/sm80/walk/walk_calls.cuh"

namespace flashmask::cuda::sm80 {

/// The launches of a call for heads of any dims that are served. Wide heads are cut into slices of keys and values,
/// each a call of its own, one after the other: o is a sum over slices of keys, and every number of a gradient a sum
/// over slices of keys and of values. What o is divided by is found before for all of them.
template <class T, class Launcher>
class SlicedCalls {
 public:
  SlicedCalls(const LinearProblem& problem, const WalkPlan& plan, const WalkPlanView& view, const std::int64_t* padding,
              Launcher& launcher)
      : problem_(problem), plan_(plan), view_(view), padding_(padding), launcher_(launcher) {}

  void forward(const LinearForwardTensors& t) {
    if (slices() == 1) return calls(problem_).forward(t);
    if (problem_.normalize) find_divisors(t);
    const TensorView o = parts_of(t.o, keys_);
    for_each_slice([&](int key, int value) {
      LinearForwardTensors own = t;
      own.q = dims_of(t.q, key), own.k = dims_of(t.k, key), own.v = dims_of(t.v, value);
      own.o = dims_of(part(o, key, keys_), value);
      own.initial = of_slice(t.initial, key, value), own.final = of_slice(t.final, key, value);
      calls(problem_of(key, value), divisors_).forward(own);
    });
    add_up(o, t.o, keys_);
  }

  void backward(const LinearBackwardTensors& t) {
    if (slices() == 1) return calls(problem_).backward(t);
    if (problem_.normalize) find_divisors(t);
    const TensorView grad_q = parts_of(t.grad_q, values_), grad_k = parts_of(t.grad_k, values_),
                     grad_v = parts_of(t.grad_v, keys_);
    for_each_slice([&](int key, int value) {
      LinearBackwardTensors own = t;
      own.q = dims_of(t.q, key), own.k = dims_of(t.k, key), own.v = dims_of(t.v, value);
      own.o = dims_of(t.o, value), own.grad_o = dims_of(t.grad_o, value);
      own.grad_q = dims_of(part(grad_q, value, values_), key), own.grad_k = dims_of(part(grad_k, value, values_), key);
      own.grad_v = dims_of(part(grad_v, key, keys_), value);
      own.initial = of_slice(t.initial, key, value), own.grad_final = of_slice(t.grad_final, key, value);
      own.grad_initial = of_slice(t.grad_initial, key, value);
      const WalkDivisors divisors{divisors_.factor, value == 0 ? divisors_.gradient : nullptr};
      calls(problem_of(key, value), divisors, key + value > 0).backward(own);
    });
    add_up(grad_q, t.grad_q, values_), add_up(grad_k, t.grad_k, values_), add_up(grad_v, t.grad_v, keys_);
  }

 private:
  using Calls = WalkCalls<T, Launcher>;

  int slices() const { return keys_ * values_; }
  Calls calls(const LinearProblem& problem, const WalkDivisors& divisors = {}, bool adds = false) const {
    return Calls(problem, plan_, view_, padding_, launcher_, divisors, adds);
  }

  /// Calls body(slice of keys, slice of values), each with the memory of the one before.
  template <class Body>
  void for_each_slice(const Body& body) {
    for (int key = 0; key < keys_; ++key)
      for (int value = 0; value < values_; ++value) {
        const std::size_t mark = launcher_.mark();
        body(key, value);
        launcher_.rewind(mark);
      }
  }

  /// The problem of a slice. Sums of weights, and the states' vectors, are sums over keys alone: the first slice of
  /// values has them.
  const LinearProblem& problem_of(int key, int value) {
    of_slice_ = problem_;
    of_slice_.scale = problem_.query_scale();
    of_slice_.key_dim = dims(problem_.key_dim, key), of_slice_.value_dim = dims(problem_.value_dim, value);
    of_slice_.normalize = problem_.normalize && value == 0;
    return of_slice_;
  }

  static std::int64_t dims(std::int64_t all, int slice) {
    return std::min<std::int64_t>(all - slice * kSliceDim, kSliceDim);
  }
  /// Returns a slice of an axis.
  static TensorView along(TensorView tensor, int axis, int slice) {
    const auto at = static_cast<std::size_t>(axis);
    if (!tensor.present()) return tensor;
    tensor.data = static_cast<std::byte*>(tensor.data) +
                  slice * kSliceDim * tensor.strides[at] * static_cast<std::int64_t>(size_in_bytes(tensor.dtype));
    tensor.shape[at] = dims(tensor.shape[at], slice);
    return tensor;
  }
  static TensorView dims_of(const TensorView& tensor, int slice) { return along(tensor, 3, slice); }
  static LinearStates of_slice(const LinearStates& states, int key, int value) {
    return {along(along(states.state, 2, key), 3, value), value == 0 ? along(states.normalizer, 2, key) : TensorView{},
            states.log_scale};
  }

  /// Memory for `count` parts of each head of a tensor; of one, the tensor itself.
  TensorView parts_of(const TensorView& sum, int count) {
    return count == 1 ? sum : allocate_parts(launcher_, sum, count);
  }
  static TensorView part(TensorView parts, int number, int count) {
    parts.data = static_cast<std::byte*>(parts.data) +
                 number * parts.strides[2] * static_cast<std::int64_t>(size_in_bytes(parts.dtype));
    parts.shape[2] /= count, parts.strides[2] *= count;
    return parts;
  }
  void add_up(const TensorView& parts, const TensorView& to, int count) {
    if (count > 1) add_groups<T>(launcher_, parts, to, count);
  }

  /// Finds what o is divided by, and, for a backward, its gradient.
  template <class Tensors>
  void find_divisors(const Tensors& t) {
    constexpr bool kDifferentiates = std::is_same_v<Tensors, LinearBackwardTensors>;
    const auto numbers = static_cast<std::size_t>(calls(problem_).token_heads()) * sizeof(float);
    divisors_.factor = static_cast<float*>(launcher_.allocate(numbers));
    if (kDifferentiates) divisors_.gradient = static_cast<float*>(launcher_.allocate(numbers));
    for (int key = 0; key < keys_; ++key) {
      const std::size_t mark = launcher_.mark();
      Tensors own = t;
      own.q = dims_of(t.q, key), own.k = dims_of(t.k, key), own.v = dims_of(t.v, 0);
      own.initial = of_slice(t.initial, key, 0);
      calls(problem_of(key, 0), divisors_).divide_slice(own, key > 0, key + 1 < keys_);
      launcher_.rewind(mark);
    }
    if constexpr (kDifferentiates) calls(problem_, divisors_).differentiate_divisors(t.o, t.grad_o);
  }

  const LinearProblem& problem_;
  const WalkPlan& plan_;
  const WalkPlanView& view_;
  const std::int64_t* padding_;
  Launcher& launcher_;
  const int keys_ = key_slices(problem_), values_ = value_slices(problem_);
  LinearProblem of_slice_;
  WalkDivisors divisors_{};
};

}  // namespace flashmask::cuda::sm80
