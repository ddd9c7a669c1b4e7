#include "flashmask/merge.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "cpu/launch.h"
#include "cpu/scalar_vector.h"
#include "flashmask/error.h"
#include "plan/tensor_checks.h"

namespace flashmask {
namespace {

using cpu::Bf16;
using cpu::F16;
using cpu::Scalar;

constexpr std::int64_t kRowsPerTask = 64;

/// (batch, rows, heads, dim).
struct Extent {
  std::int64_t batch, rows, heads, dim;
};

struct Place {
  std::int64_t batch, row, head;
};

template <class Element>
Element* values_at(const TensorView& tensor, const Place& at) {
  return static_cast<Element*>(tensor.data) + at.batch * tensor.strides[0] + at.row * tensor.strides[1] +
         at.head * tensor.strides[2];
}

float& lse_at(const TensorView& tensor, const Place& at) {
  return *(static_cast<float*>(tensor.data) + at.batch * tensor.strides[0] + at.head * tensor.strides[1] +
           at.row * tensor.strides[2]);
}

/// Calls body(place) for every row and head, shared out over the executor.
template <class Body>
void for_each_place(const Extent& extent, Executor& executor, const Body& body) {
  const std::int64_t blocks = (extent.rows + kRowsPerTask - 1) / kRowsPerTask;
  cpu::for_each_task(executor, executor.workers(), extent.batch * blocks, [&](std::int64_t task, int) {
    const std::int64_t first = task % blocks * kRowsPerTask;
    for (std::int64_t row = first; row < std::min(first + kRowsPerTask, extent.rows); ++row)
      for (std::int64_t head = 0; head < extent.heads; ++head) body(Place{task / blocks, row, head});
  });
}

/// log(eᵃ + eᵇ); −inf where both are −inf, NaN where one is NaN.
float log_of_sum(float a, float b) {
  const float larger = a > b ? a : b;
  const float smaller = a > b ? b : a;
  return larger == -HUGE_VALF ? larger : larger + std::log1p(std::exp(smaller - larger));
}

/// The weight of one side in the merged result.
float weight(float side, float lse) { return side == -HUGE_VALF ? 0.0F : std::exp(side - lse); }

/// Writes value(widen) to `dim` elements, a vector at a time; widen(p) reads the elements of another row, at p, that
/// are in the same place.
template <class Element, class Value>
void write_row(Element* out, std::int64_t dim, const Value& value) {
  std::int64_t i = 0;
  for (; i + Scalar::lanes <= dim; i += Scalar::lanes)
    Scalar::narrow(out + i, value([&](const Element* p) { return Scalar::widen(p + i); }));
  const auto rest = static_cast<int>(dim - i);
  if (rest != 0)
    Scalar::narrow_tail(out + i, value([&](const Element* p) { return Scalar::widen_tail(p + i, rest); }), rest);
}

/// factor · x, where 0 · x is 0 and x is not read.
template <class Element>
void write_scaled(float factor, const Element* x, Element* out, std::int64_t dim) {
  const Scalar::Vec scale = Scalar::broadcast(factor);
  write_row(out, dim, [&](const auto& widen) { return factor == 0 ? scale : Scalar::mul(scale, widen(x)); });
}

template <class Element>
void write_sum(float w1, const Element* x1, float w2, const Element* x2, Element* out, std::int64_t dim) {
  if (w2 == 0) return write_scaled(w1, x1, out, dim);
  if (w1 == 0) return write_scaled(w2, x2, out, dim);
  const Scalar::Vec scale1 = Scalar::broadcast(w1), scale2 = Scalar::broadcast(w2);
  write_row(out, dim,
            [&](const auto& widen) { return Scalar::fma(scale1, widen(x1), Scalar::mul(scale2, widen(x2))); });
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

template <class Element>
void merge_place(const MergeTensors& t, const Place& at, std::int64_t dim) {
  const float lse1 = lse_at(t.lse1, at), lse2 = lse_at(t.lse2, at);
  const float lse = log_of_sum(lse1, lse2);
  write_sum(weight(lse1, lse), values_at<const Element>(t.o1, at), weight(lse2, lse),
            values_at<const Element>(t.o2, at), values_at<Element>(t.o, at), dim);
  lse_at(t.lse, at) = lse;
}

/// One side: what was merged, and where its gradients go.
struct Side {
  const TensorView &o, &lse, &grad_o, &grad_lse;
};

template <class Element>
void differentiate_place(const MergeGradients& t, const Place& at, std::int64_t dim) {
  const auto* const grad_o = values_at<const Element>(t.grad_o, at);
  const float lse = lse_at(t.lse, at);
  const float grad_lse = t.grad_lse.present() ? lse_at(t.grad_lse, at) : 0;
  const float delta = grad_lse - dot(grad_o, values_at<const Element>(t.o, at), dim);
  for (const Side& side : {Side{t.o1, t.lse1, t.grad_o1, t.grad_lse1}, Side{t.o2, t.lse2, t.grad_o2, t.grad_lse2}}) {
    const float part = weight(lse_at(side.lse, at), lse);
    write_scaled(part, grad_o, values_at<Element>(side.grad_o, at), dim);
    lse_at(side.grad_lse, at) = part == 0 ? 0 : part * (dot(grad_o, values_at<const Element>(side.o, at), dim) + delta);
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

/// Checks the tensors of a call against the first of them, an output of attention.
class MergeCheck {
 public:
  MergeCheck(const char* call, const TensorView& o1) : check_(call, o1.device), dtype_(o1.dtype) {
    const auto& [batch, rows, heads, dim] = o1.shape;
    extent_ = {batch, rows, heads, dim};
    if (o1.rank != 4)
      throw Error(Status::invalid_argument, std::string(call) + ": o1: rank is " + std::to_string(o1.rank) +
                                                "; expected 4, (batch, rows, heads, dim)");
    for (const std::int64_t size : o1.shape)
      if (size < 0)
        throw Error(Status::invalid_argument,
                    std::string(call) + ": o1: a size is " + std::to_string(size) + "; expected 0 or more");
    if (o1.device.type != DeviceType::cpu)
      throw Error(Status::unsupported, std::string(call) + ": o1: device is " + to_string(o1.device) +
                                           "; expected cpu: this build merges there only");
  }

  void values(const char* name, const TensorView& tensor) const {
    check_(name, tensor, dtype_, {extent_.batch, extent_.rows, extent_.heads, extent_.dim});
  }
  void lse(const char* name, const TensorView& tensor) const {
    check_(name, tensor, DType::f32, {extent_.batch, extent_.heads, extent_.rows});
  }

  const Extent& extent() const { return extent_; }

 private:
  TensorCheck check_;
  DType dtype_;
  Extent extent_{};
};

/// Of MergeTensors or MergeGradients: both sides and what they merge to.
template <class Tensors>
MergeCheck check_merged(const char* call, const Tensors& tensors) {
  const MergeCheck check(call, tensors.o1);
  check.values("o1", tensors.o1);
  check.lse("lse1", tensors.lse1);
  check.values("o2", tensors.o2);
  check.lse("lse2", tensors.lse2);
  check.values("o", tensors.o);
  check.lse("lse", tensors.lse);
  return check;
}

}  // namespace

void merge(const MergeTensors& tensors, Executor& executor) {
  const MergeCheck check = check_merged("merge", tensors);
  with_element_of(tensors.o1.dtype, [&](auto element) {
    for_each_place(check.extent(), executor,
                   [&](const Place& at) { merge_place<decltype(element)>(tensors, at, check.extent().dim); });
  });
}

void merge_backward(const MergeGradients& tensors, Executor& executor) {
  const MergeCheck check = check_merged("merge_backward", tensors);
  check.values("grad_o", tensors.grad_o);
  if (tensors.grad_lse.present()) check.lse("grad_lse", tensors.grad_lse);
  check.values("grad_o1", tensors.grad_o1);
  check.lse("grad_lse1", tensors.grad_lse1);
  check.values("grad_o2", tensors.grad_o2);
  check.lse("grad_lse2", tensors.grad_lse2);
  with_element_of(tensors.o1.dtype, [&](auto element) {
    for_each_place(check.extent(), executor,
                   [&](const Place& at) { differentiate_place<decltype(element)>(tensors, at, check.extent().dim); });
  });
}

}  // namespace flashmask
