// SPDX-License-Identifier: Apache-2.0
#include "plan/merge.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/bodies.h"
#include "cpu/launch.h"
#include "cpu/scalar_vector.h"

namespace flashmask {
namespace {

using cpu::Bf16;
using cpu::F16;
using cpu::Scalar;

constexpr std::int64_t kRowsPerTask = 64;

/// One row of one head.
struct RowAt {
  std::int64_t batch, row, head;
};

template <class Element>
Element* values_at(const TensorView& tensor, const RowAt& at) {
  return static_cast<Element*>(tensor.data) + at.batch * tensor.strides[0] + at.row * tensor.strides[1] +
         at.head * tensor.strides[2];
}

float& lse_at(const TensorView& tensor, const RowAt& at) {
  return *(static_cast<float*>(tensor.data) + at.batch * tensor.strides[0] + at.head * tensor.strides[1] +
           at.row * tensor.strides[2]);
}

/// The lse of a part, −inf where it saw nothing, for which FlashAttention writes +inf.
float part_lse_at(const TensorView& tensor, const RowAt& at) {
  const float lse = lse_at(tensor, at);
  return std::isinf(lse) ? -HUGE_VALF : lse;
}

/// Calls make_body()(row) for every row and head, shared out over the executor; each task makes one body.
template <class MakeBody>
void for_each_row(const MergeExtent& extent, Executor& executor, const MakeBody& make_body) {
  const std::int64_t blocks = (extent.rows + kRowsPerTask - 1) / kRowsPerTask;
  cpu::for_each_task(executor, worker_count(executor), extent.batch * blocks, [&](std::int64_t task, int) {
    const std::int64_t first = task % blocks * kRowsPerTask;
    auto body = make_body();
    for (std::int64_t row = first; row < std::min(first + kRowsPerTask, extent.rows); ++row)
      for (std::int64_t head = 0; head < extent.heads; ++head) body(RowAt{task / blocks, row, head});
  });
}

/// Returns the weight of a part in the result whose lse is `lse`.
float weight(float part, float lse) { return part == -HUGE_VALF ? 0.0F : std::exp(part - lse); }

/// Writes value(widen) to `dim` elements, a vector at a time; widen(p) reads the elements of another row, which begins
/// at p, that are at the same offset.
template <class Element, class Value>
void write_row(Element* out, std::int64_t dim, const Value& value) {
  std::int64_t i = 0;
  for (; i + Scalar::lanes <= dim; i += Scalar::lanes)
    Scalar::narrow(out + i, value([&](const Element* p) { return Scalar::widen(p + i); }));
  const auto rest = static_cast<int>(dim - i);
  if (rest != 0)
    Scalar::narrow_tail(out + i, value([&](const Element* p) { return Scalar::widen_tail(p + i, rest); }), rest);
}

/// Writes factor · x; if the factor is 0, writes 0 and does not read x.
template <class Element>
void write_scaled(float factor, const Element* x, Element* out, std::int64_t dim) {
  const Scalar::Vec scale = Scalar::broadcast(factor);
  write_row(out, dim, [&](const auto& widen) { return factor == 0 ? scale : Scalar::mul(scale, widen(x)); });
}

template <class Element>
float dot(const Element* x, const Element* y, std::int64_t dim) {
  Scalar::Vec sum = Scalar::broadcast(0);
  std::int64_t i = 0;
  for (; i + Scalar::lanes <= dim; i += Scalar::lanes)
    sum = Scalar::fma(Scalar::widen(x + i), Scalar::widen(y + i), sum);
  const auto rest = static_cast<int>(dim - i);
  return Scalar::sum(Scalar::fma(Scalar::widen_tail(x + i, rest), Scalar::widen_tail(y + i, rest), sum));
}

/// Merges one row of one head per call.
template <class Element>
class RowMerge {
 public:
  RowMerge(const MergeTensors& tensors, std::int64_t dim) : tensors_(tensors), dim_(dim) {}

  void operator()(const RowAt& at) {
    const Total total = total_of(at);
    counting_.clear();
    for (const MergePart& part : tensors_.parts)
      if (const float own = total.weight(part_lse_at(part.lse, at)); own != 0)
        counting_.push_back({own, values_at<const Element>(part.o, at)});
    write_row(values_at<Element>(tensors_.o, at), dim_, [&](const auto& widen) {
      Scalar::Vec sum = Scalar::broadcast(0);
      for (const Row& row : counting_) sum = Scalar::fma(Scalar::broadcast(row.weight), widen(row.values), sum);
      return sum;
    });
    lse_at(tensors_.lse, at) = total.lse();
  }

 private:
  struct Row {
    float weight;
    const Element* values;
  };

  /// sum · e^shift is Σ e^lseᵢ: 0 if all are −inf, NaN if one is NaN. Weights are not found from lse itself, which is
  /// rounded too coarsely: to 3e-5 where it is 500.
  struct Total {
    float shift, sum;

    float lse() const { return shift + std::log(sum); }
    float weight(float part) const { return sum == 0 ? 0 : std::exp(part - shift) / sum; }
  };

  Total total_of(const RowAt& at) const {
    float largest = -HUGE_VALF;
    for (const MergePart& part : tensors_.parts) largest = std::max(largest, part_lse_at(part.lse, at));
    Total total{std::isinf(largest) ? 0 : largest, 0};
    for (const MergePart& part : tensors_.parts) total.sum += std::exp(part_lse_at(part.lse, at) - total.shift);
    return total;
  }

  const MergeTensors& tensors_;
  std::int64_t dim_;
  std::vector<Row> counting_;  // the parts whose weight is not 0; a member, to reuse its memory
};

template <class Element>
void differentiate_row(const MergeGradients& t, const RowAt& at, std::int64_t dim) {
  const auto* const grad_o = values_at<const Element>(t.grad_o, at);
  const float lse = lse_at(t.lse, at);
  const float grad_lse = t.grad_lse.present() ? lse_at(t.grad_lse, at) : 0;
  const float delta = grad_lse - dot(grad_o, values_at<const Element>(t.o, at), dim);
  for (const MergePartGradients& part : t.parts) {
    const float own = weight(part_lse_at(part.lse, at), lse);
    write_scaled(own, grad_o, values_at<Element>(part.grad_o, at), dim);
    lse_at(part.grad_lse, at) = own == 0 ? 0 : own * (dot(grad_o, values_at<const Element>(part.o, at), dim) + delta);
  }
}

/// Calls run(Element()) with the storage type of a dtype.
template <class Run>
void with_element_of(DType dtype, const Run& run) {
  switch (dtype) {
    case DType::f32:
      return run(float());
    case DType::bf16:
      return run(Bf16());
    case DType::f16:
      return run(F16());
  }
}

}  // namespace

void merge_on_cpu(const MergeTensors& tensors, const MergeExtent& extent, Executor& executor) {
  with_element_of(tensors.o.dtype, [&](auto element) {
    for_each_row(extent, executor, [&] { return RowMerge<decltype(element)>(tensors, extent.dim); });
  });
}

void merge_backward_on_cpu(const MergeGradients& tensors, const MergeExtent& extent, Executor& executor) {
  with_element_of(tensors.o.dtype, [&](auto element) {
    for_each_row(extent, executor, [&] {
      return [&](const RowAt& at) { differentiate_row<decltype(element)>(tensors, at, extent.dim); };
    });
  });
}

}  // namespace flashmask
