// SPDX-License-Identifier: Apache-2.0
#include "flashmask/merge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "flashmask/error.h"
#include "kit/device_memory.h"
#include "kit/host_tensor.h"

/// merge() on a GPU against the same on the CPU, which tests/cpu/merge_test.cpp holds against formulas.
namespace flashmask {
namespace {

using check::DeviceTensor;
using check::HostTensor;

constexpr float kEmpty = -std::numeric_limits<float>::infinity();
constexpr std::int64_t kBatch = 2, kRows = 37, kHeads = 3;

/// What two orders of a float32 sum may differ by, and two roundings of it.
double tolerance(DType dtype) { return dtype == DType::f32 ? 2e-6 : dtype == DType::bf16 ? 1e-2 : 2e-3; }

/// Parts 0 to count − 1 of one tensor, and their gradients; a third of all places of a part is empty, and a place of
/// eleven in all. Half of the empty places have +inf, as FlashAttention writes them.
struct Stacked {
  std::int64_t parts, dim;
  HostTensor o, lse, merged_o, merged_lse, grad_o, grad_lse, part_grad_o, part_grad_lse;

  Stacked(DType dtype, std::int64_t count, std::int64_t size)
      : parts(count),
        dim(size),
        o(dtype, {parts * kBatch, kRows, kHeads, dim}),
        lse(DType::f32, {parts * kBatch, kHeads, kRows}),
        merged_o(dtype, {kBatch, kRows, kHeads, dim}),
        merged_lse(DType::f32, {kBatch, kHeads, kRows}),
        grad_o(dtype, {kBatch, kRows, kHeads, dim}),
        grad_lse(DType::f32, {kBatch, kHeads, kRows}),
        part_grad_o(dtype, {parts * kBatch, kRows, kHeads, dim}),
        part_grad_lse(DType::f32, {parts * kBatch, kHeads, kRows}) {
    check::RandomNumbers random(4);
    for (HostTensor* input : {&o, &grad_o, &grad_lse}) input->fill_normal(random);
    const std::int64_t places = lse.size() / parts;
    for (std::int64_t i = 0; i < lse.size(); ++i)
      lse.set(
          i, (i + i / places) % 3 == 0 || i % places % 11 == 0 ? (i % 2 == 0 ? kEmpty : -kEmpty) : 4 * random.normal());
  }

  MergeTensors forward() const {
    MergeTensors tensors{.parts = {}, .o = merged_o.view(), .lse = merged_lse.view()};
    for (std::int64_t i = 0; i < parts; ++i) tensors.parts.push_back({part(o, i), part(lse, i)});
    return tensors;
  }
  MergeGradients backward() const {
    MergeGradients tensors{{}, merged_o.view(), merged_lse.view(), grad_o.view(), grad_lse.view()};
    for (std::int64_t i = 0; i < parts; ++i)
      tensors.parts.push_back({part(o, i), part(lse, i), part(part_grad_o, i), part(part_grad_lse, i)});
    return tensors;
  }

  /// Batch entries part · kBatch and the ones behind it.
  static TensorView part(const HostTensor& all, std::int64_t part) { return part_of(all.view(), part); }
  static TensorView part_of(TensorView view, std::int64_t part) {
    view.data = static_cast<std::byte*>(view.data) +
                static_cast<std::size_t>(part * kBatch * view.strides[0]) * size_in_bytes(view.dtype);
    view.shape[0] = kBatch;
    return view;
  }
};

/// The same on a GPU.
struct OnGpu {
  const Stacked& host;
  DeviceTensor o{host.o.view()}, lse{host.lse.view()}, merged_o{host.merged_o.view()},
      merged_lse{host.merged_lse.view()}, grad_o{host.grad_o.view()}, grad_lse{host.grad_lse.view()},
      part_grad_o{host.part_grad_o.view()}, part_grad_lse{host.part_grad_lse.view()};

  MergeTensors forward() const {
    MergeTensors tensors{.parts = {}, .o = merged_o.view(), .lse = merged_lse.view()};
    for (std::int64_t i = 0; i < host.parts; ++i)
      tensors.parts.push_back({Stacked::part_of(o.view(), i), Stacked::part_of(lse.view(), i)});
    return tensors;
  }
  MergeGradients backward() const {
    MergeGradients tensors{{}, merged_o.view(), merged_lse.view(), grad_o.view(), grad_lse.view()};
    for (std::int64_t i = 0; i < host.parts; ++i)
      tensors.parts.push_back({Stacked::part_of(o.view(), i), Stacked::part_of(lse.view(), i),
                               Stacked::part_of(part_grad_o.view(), i), Stacked::part_of(part_grad_lse.view(), i)});
    return tensors;
  }
  void download() const {
    check::synchronize_device();
    for (const DeviceTensor* output : {&merged_o, &merged_lse, &part_grad_o, &part_grad_lse}) output->download();
  }
};

void expect_near(const HostTensor& given, const HostTensor& expected, double bound) {
  for (std::int64_t i = 0; i < expected.size(); ++i) {
    if (std::isfinite(expected.at(i))) {
      ASSERT_NEAR(given.at(i), expected.at(i), bound * std::max(1.0F, std::abs(expected.at(i)))) << i;
    } else {
      ASSERT_EQ(given.at(i), expected.at(i)) << i;
    }
  }
}

class CudaMerge : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, CudaMerge, testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& dtype) { return to_string(dtype.param); });

TEST_P(CudaMerge, IsThatOfTheCpu) {
  for (const std::int64_t parts : {1, 2, 7, 45, 133})
    for (const std::int64_t dim : {1, 23, 64, 256}) {
      const Stacked expected(GetParam(), parts, dim), given(GetParam(), parts, dim);
      const OnGpu gpu{given};
      merge(gpu.forward());
      merge_backward(gpu.backward());
      gpu.download();
      merge(expected.forward());
      merge_backward(expected.backward());
      const double sum = tolerance(GetParam()) * static_cast<double>(dim);  // of a dot product over a row
      expect_near(given.merged_o, expected.merged_o, tolerance(GetParam()));
      expect_near(given.merged_lse, expected.merged_lse, 1e-6);
      expect_near(given.part_grad_o, expected.part_grad_o, tolerance(GetParam()));
      expect_near(given.part_grad_lse, expected.part_grad_lse, 4 * sum);
    }
}

/// Parts in memory of their own, in no even distance, are summed in the same order as parts of one tensor.
TEST_P(CudaMerge, IsTheSameBitsWhereverThePartsLie) {
  const Stacked stacked(GetParam(), 9, 72), apart(GetParam(), 9, 72);
  const OnGpu gpu{stacked}, other{apart};
  merge(gpu.forward());
  gpu.download();
  std::vector<std::unique_ptr<DeviceTensor>> copies;
  MergeTensors scattered = other.forward();
  for (std::int64_t i = 0; i < 9; ++i) {
    copies.push_back(std::make_unique<DeviceTensor>(Stacked::part(apart.o, i)));
    scattered.parts[static_cast<std::size_t>(i)].o = copies.back()->view();
    if (i % 2 == 0) copies.push_back(std::make_unique<DeviceTensor>(Stacked::part(apart.grad_o, 0)));  // a gap
  }
  merge(scattered);
  other.download();
  EXPECT_EQ(apart.merged_o.values(), stacked.merged_o.values());
  EXPECT_EQ(apart.merged_lse.values(), stacked.merged_lse.values());
}

TEST_P(CudaMerge, MayWriteOverAPartAndReadsNoneThatIsEmpty) {
  const Stacked plain(GetParam(), 3, 40), over(GetParam(), 3, 40);
  for (const Stacked* each : {&plain, &over})
    for (std::int64_t i = 2 * kBatch * kHeads * kRows; i < each->lse.size(); ++i) {
      const_cast<HostTensor&>(each->lse).set(i, kEmpty);
    }
  HostTensor& last = const_cast<HostTensor&>(over.o);
  for (std::int64_t i = last.size() / 3 * 2; i < last.size(); ++i) last.set(i, NAN);
  const OnGpu gpu{plain}, in_place{over};
  merge(gpu.forward());
  MergeTensors tensors = in_place.forward();
  tensors.o = tensors.parts[1].o;
  tensors.lse = tensors.parts[1].lse;
  merge(tensors);
  gpu.download();
  check::synchronize_device();
  in_place.o.download();
  in_place.lse.download();
  const std::vector<double> o = over.o.values(), lse = over.lse.values();
  const auto part = [](const std::vector<double>& all) {
    const auto third = static_cast<std::ptrdiff_t>(all.size() / 3);
    return std::vector<double>(all.begin() + third, all.begin() + 2 * third);
  };
  EXPECT_EQ(part(o), plain.merged_o.values());
  EXPECT_EQ(part(lse), plain.merged_lse.values());
}

TEST(CudaMergeChecks, RefuseTooManyPartsThatLieApart) {
  const Stacked host(DType::bf16, 33, 8);
  const OnGpu gpu{host};
  MergeTensors tensors = gpu.forward();
  for (std::size_t i = 0; i < tensors.parts.size(); i += 2) tensors.parts[i].o.strides[0] = 0;
  try {
    merge(tensors);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::unsupported);
    EXPECT_NE(std::string(error.what()).find("33 parts lie on the GPU"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace flashmask
