// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "cuda/kernels_under_test.h"
#include "flashmask/builders.h"
#include "flashmask/device_plan.h"
#include "kit/corpus.h"
#include "kit/device_memory.h"
#include "kit/placed_attention.h"

namespace flashmask {
namespace {

using check::AttentionTensors;
using check::DeviceTensor;
using check::HostTensor;
using check::PlacedPlan;
using check::PlacedTensors;

HostTensor like(const HostTensor& tensor, DType dtype) {
  return {dtype, {tensor.shape(0), tensor.shape(1), tensor.shape(2), tensor.shape(3)}};
}

/// With gradients of k and v in float32.
AttentionTensors summing(const Problem& p, std::uint64_t seed) {
  AttentionTensors tensors(p, seed);
  tensors.grad_k = like(tensors.grad_k, DType::f32);
  tensors.grad_v = like(tensors.grad_v, DType::f32);
  return tensors;
}

bool rounds_to(const HostTensor& wide, const HostTensor& narrow) {
  HostTensor rounded = like(narrow, narrow.view().dtype);
  for (std::int64_t i = 0; i < wide.size(); ++i) rounded.set(i, wide.at(i));
  return std::memcmp(rounded.view().data, narrow.view().data, static_cast<std::size_t>(wide.size()) * 2) == 0;
}

class CudaFloat32KeyGradients : public testing::TestWithParam<KernelInfo> {
 protected:
  Problem problem(std::int64_t rows, std::int64_t columns) const {
    Problem p;
    p.query_length = rows;
    p.key_length = columns;
    p.query_heads = 4;
    p.kv_heads = 2;
    p.head_dim = GetParam().head_dim - 8;
    p.value_dim = GetParam().head_dim - 24;
    p.dtype = GetParam().dtype;
    p.device = {DeviceType::cuda, 0};
    return p;
  }
  PlanOptions options(TileSize tiles = TileSize::automatic) const {
    return {.form = GetParam().predicate,
            .kernel = GetParam().name,
            .deterministic = check::repeats(GetParam()),
            .backward_tiles = tiles};
  }
  bool reads(const Mask& mask) const {
    if (GetParam().predicate == MaskForm::bits) return true;
    return mask.lowered().form() == MaskForm::intervals && mask.lowered().blocks() == nullptr;
  }
  void attend(const Mask& mask, const AttentionTensors& tensors, TileSize tiles = TileSize::automatic) const {
    PlacedPlan placed(mask, problem(mask.shape().rows, mask.shape().columns), options(tiles));
    const PlacedTensors on_device(tensors, {DeviceType::cuda, 0});
    placed.forward(on_device.forward());
    placed.backward(on_device.backward());
    on_device.fetch();
  }
};

INSTANTIATE_TEST_SUITE_P(Kernels, CudaFloat32KeyGradients, testing::ValuesIn(check::cuda_kernels(Direction::backward)),
                         check::test_name);

TEST_P(CudaFloat32KeyGradients, RoundOnceToThoseOfTheDtypeOnTheCorpus) {
  for (const corpus::Entry& entry : corpus::entries()) {
    for (const corpus::Size& size : {corpus::Size{63, 65}, {200, 128}, {257, 257}}) {
      if (!entry.accepts(size)) continue;
      const Mask mask = entry.build(size);
      if (!reads(mask)) continue;
      SCOPED_TRACE(entry.name + " " + std::to_string(size.rows) + " x " + std::to_string(size.columns));
      const AttentionTensors wide = summing(problem(size.rows, size.columns), 5);
      const AttentionTensors narrow(problem(size.rows, size.columns), 5);
      attend(mask, wide);
      attend(mask, narrow);
      ASSERT_TRUE(rounds_to(wide.grad_k, narrow.grad_k));
      ASSERT_TRUE(rounds_to(wide.grad_v, narrow.grad_v));
    }
  }
}

/// Largest difference, in units of the largest value.
double relative_error(const HostTensor& whole, const HostTensor& first, const HostTensor& second) {
  double error = 0, largest = 0;
  for (std::int64_t i = 0; i < whole.size(); ++i) {
    const double sum = static_cast<double>(first.at(i)) + second.at(i);
    error = std::max(error, std::abs(whole.at(i) - sum));
    largest = std::max(largest, std::abs(sum));
  }
  return error / largest;
}

/// Those of some of the rows, added and rounded once, are those of all rows: 16-bit numbers would miss by 1e-3. o and
/// lse are those of all rows, and tiles are large, as parts may otherwise take tiles of another shape, whose
/// probabilities are rounded to 16 bits elsewhere.
TEST_P(CudaFloat32KeyGradients, OfPartsOfTheRowsAddUp) {
  const Mask mask = masks::causal(768, 768);
  const Problem p = problem(768, 768);
  AttentionTensors whole = summing(p, 5), first = summing(p, 5), second = summing(p, 5);
  attend(mask, whole, TileSize::large);
  const auto differentiate = [&](AttentionTensors& part, std::int64_t dropped) {
    std::vector<std::int64_t> rows(384);
    std::iota(rows.begin(), rows.end(), dropped);
    for (std::int64_t i = 0; i < whole.o.size(); ++i) part.o.set(i, whole.o.at(i));
    for (std::int64_t i = 0; i < whole.lse.size(); ++i) part.lse.set(i, whole.lse.at(i));
    PlacedPlan placed(masks::drop_queries(mask, rows), p, options(TileSize::large));
    const PlacedTensors on_device(part, {DeviceType::cuda, 0});
    placed.backward(on_device.backward());
    on_device.fetch();
  };
  differentiate(first, 384);
  differentiate(second, 0);
  EXPECT_LT(relative_error(whole.grad_k, first.grad_k, second.grad_k), 4e-6);
  EXPECT_LT(relative_error(whole.grad_v, first.grad_v, second.grad_v), 4e-6);
}

/// A part of a larger tensor, whose other elements stay as they are.
TEST_P(CudaFloat32KeyGradients, MayLieInALargerTensor) {
  const Problem p = problem(150, 150);
  const AttentionTensors tensors = summing(p, 5), alone = summing(p, 5);
  attend(masks::causal(150, 150), alone);
  const HostTensor k(DType::f32, {1, 160, 2, p.head_dim + 4}), v(DType::f32, {1, 160, 2, p.value_dim + 4});
  const DeviceTensor k_there(k.view()), v_there(v.view());
  PlacedPlan placed(masks::causal(150, 150), p, options());
  const PlacedTensors on_device(tensors, {DeviceType::cuda, 0});
  placed.forward(on_device.forward());
  BackwardTensors given = on_device.backward();
  for (auto [to, from] : {std::pair{&given.grad_k, &k_there}, {&given.grad_v, &v_there}}) {
    const auto shape = to->shape;
    *to = from->view();
    to->shape = shape;
  }
  placed.backward(given);
  check::synchronize_device();
  k_there.download();
  v_there.download();
  for (const auto& [larger, result] : {std::pair{&k, &alone.grad_k}, {&v, &alone.grad_v}}) {
    const std::int64_t dim = result->shape(3);
    for (std::int64_t i = 0; i < larger->size(); ++i) {
      const std::int64_t row = i / (dim + 4), column = i % (dim + 4);
      if (row < 300 && column < dim)
        ASSERT_EQ(larger->at(i), result->at(row * dim + column)) << row << " " << column;
      else
        ASSERT_TRUE(std::isnan(larger->at(i))) << row << " " << column;
    }
  }
}

}  // namespace
}  // namespace flashmask
