// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "flashmask/attention.h"
#include "flashmask/tensor.h"
#include "kit/random_numbers.h"

namespace flashmask::check {

/// A contiguous tensor in host memory that begins on a cache line, as frameworks' tensors do.
class HostTensor {
 public:
  /// Fills the tensor with NaN, so that what a kernel forgets to write is noticed.
  HostTensor(DType dtype, const std::vector<std::int64_t>& shape);
  HostTensor(HostTensor&&) = default;
  HostTensor& operator=(HostTensor&&) = default;
  HostTensor(const HostTensor&) = delete;
  HostTensor& operator=(const HostTensor&) = delete;

  TensorView view() const { return view_; }
  std::int64_t size() const { return size_; }
  std::int64_t shape(std::size_t dim) const { return view_.shape[dim]; }
  std::int64_t stride(std::size_t dim) const { return view_.strides[dim]; }

  void fill_nan();
  void fill_normal(RandomNumbers& random);
  void set(std::int64_t index, float value);
  float at(std::int64_t index) const;
  std::vector<double> values() const;

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct FreeAligned {
    void operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }
  };

  std::byte* element(std::int64_t index) const;

  std::int64_t size_ = 1;
  std::size_t bytes_ = 0;
  std::unique_ptr<std::byte, FreeAligned> memory_;  ///< exactly [bytes_], so that a sanitizer notices overruns
  TensorView view_;
};

/// Which sinks a call is given: none; one per head in float32, or in the problem's dtype (narrow); or one per row.
enum class Sinks : std::uint8_t { none, of_heads, narrow_of_heads, of_rows };

/// The tensors of one problem, forward and backward, with random normal inputs. For a problem with ALiBi: slopes of
/// heads and no positions in a batch of one; in a larger one slopes of each entry, and positions that are not in order.
/// For a problem with a bias tensor: one that nothing shares but the batch in a batch of one, in float32, and in a
/// larger one that the batch shares, in the problem's dtype; a bias by distance is of every row, or shared by them,
/// likewise. For a problem with a function: operands of a few entries in each dimension, in float32 and in the
/// problem's dtype in turn.
struct AttentionTensors {
  AttentionTensors(const Problem& problem, std::uint64_t seed, Sinks which = Sinks::none);

  ForwardTensors forward() const;  ///< without max_scores
  BackwardTensors backward() const;

  /// Overwrites with NaN what earlier runs left in o, lse and the gradients of inputs.
  void clear_outputs();

  HostTensor q, k, v, o, lse, max_scores, grad_o, grad_lse, grad_q, grad_k, grad_v;
  std::optional<HostTensor> sinks, grad_sinks, alibi_slopes, query_positions, key_positions, bias, grad_bias;
  std::int64_t bias_origin = 0;
  std::vector<HostTensor> operands;

 private:
  void make_alibi(const Problem& problem);
  void make_bias(const Problem& problem, RandomNumbers& random);
  void make_operands(const Problem& problem, RandomNumbers& random);
  AlibiTensors alibi() const;
  ScoreOperands views_of_operands() const;
};

/// A problem's slopes and positions as the reference takes them; empty where it has none.
struct AlibiNumbers {
  explicit AlibiNumbers(const AttentionTensors& tensors);
  std::vector<double> slopes, query_positions, key_positions;
};

/// A problem's bias as the reference takes it; empty where it has none.
struct BiasNumbers {
  explicit BiasNumbers(const AttentionTensors& tensors);
  std::vector<double> values;
  std::array<std::int64_t, 4> shape = {};
};

/// The operands of a problem's function as the reference takes them.
struct OperandNumbers {
  explicit OperandNumbers(const AttentionTensors& tensors);
  std::vector<std::vector<double>> values;
  std::vector<ScoreOperand> operands;
};

}  // namespace flashmask::check
