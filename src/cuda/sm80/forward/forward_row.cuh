#pragma once

#include <string>

#include "cuda/common/kernel_row.h"
#include "cuda/common/launch.cuh"
#include "cuda/common/row_checks.h"
#include "cuda/runtime/device.h"
#include "cuda/sm80/architecture.h"
#include "cuda/sm80/forward/forward.h"
#include "cuda/sm80/forward/forward_kernel.cuh"
#include "plan/plan_choice.h"

namespace flashmask::cuda::sm80 {

/// A kernel reads masks of both forms, and is a row of the table for each.
template <class Shape, MaskForm kForm_>
struct OfForm : Shape {
  static constexpr MaskForm kForm = kForm_;
};

/// The kernels of a shape.
template <class Shape_>
struct ForwardCode {
  using Shape = Shape_;
  using Memory = ForwardMemory<Shape>;
  static auto kernel(bool drops) { return drops ? forward_kernel<Dropping<Shape>> : forward_kernel<Shape>; }
};

template <class Code>
class ForwardRow final : public KernelRow<ForwardKernel> {
  using Shape = typename Code::Shape;
  using Memory = typename Code::Memory;

 public:
  ForwardRow(const Architecture& architecture, KernelInfo info)
      : KernelRow(std::move(info), {architecture.capability, false, sizeof(Memory), Shape::kBlocks}) {}

  std::size_t workspace_bytes(const Problem&, int) const override { return 0; }
  std::vector<MapRequest> maps() const override { return {{kTile<Shape>, MapSide::rows}}; }

  void run(const Plan& plan, const ForwardTensors& tensors, const KernelExecution& execution) const override {
    const Device device = plan.problem().device;
    const CurrentDevice current(device);
    check_rows("forward: q", tensors.q);
    check_rows("forward: k", tensors.k);
    check_rows("forward: v", tensors.v);
    check_rows("forward: o", tensors.o);
    const DeviceMap& map = PlanAccess::device(plan).map(kTile<Shape>, MapSide::rows);
    RowArguments rows = row_arguments(plan, map, nullptr);
    rows.section_heads =
        heads_in_section(plan.problem(), static_cast<std::int64_t>(device_facts(device).cache_bytes / 10 * 3));
    if (rows.items == 0) return;
    const auto kernel = Code::kernel(has_dropout(plan.problem()));
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
          "forward: shared memory");
    launch<Memory>("forward", kernel, rows.items, Shape::kThreads, static_cast<cudaStream_t>(execution.stream),
                   forward_arguments(rows, tensors, dropout_arguments(plan.problem(), execution)));
  }
};

template <class Code, MaskForm kForm>
void add_row(KernelRows& rows, const Architecture& architecture) {
  using Shape = typename Code::Shape;
  KernelInfo info =
      info_of<OfForm<Shape, kForm>>(architecture, Direction::forward, {Shape::kHeadDim, Shape::kValueDim},
                                    tile_name<Shape>(), {Feature::deterministic, Feature::dropout, Feature::sinks});
  rows.push_back(std::make_unique<ForwardRow<Code>>(architecture, std::move(info)));
}

template <class Code>
void add_rows_of(KernelRows& rows, const Architecture& architecture) {
  add_row<Code, MaskForm::intervals>(rows, architecture);
  add_row<Code, MaskForm::bits>(rows, architecture);
}

template <class Shape>
void add_rows(KernelRows& rows, const Architecture& architecture) {
  add_rows_of<ForwardCode<Shape>>(rows, architecture);
}

}  // namespace flashmask::cuda::sm80
