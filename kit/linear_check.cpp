// SPDX-License-Identifier: Apache-2.0
#include "kit/linear_check.h"

#include <array>
#include <utility>

#include "kit/corpus.h"
#include "kit/linear_tensors.h"
#include "kit/placed_linear.h"

namespace flashmask::check {
namespace {

/// Masks take these in turn, so that each meets several.
struct LinearHeads {
  std::int64_t batch, heads, key_heads, key_dim, value_dim;
  bool normalize, states;
};
constexpr std::array<LinearHeads, 5> kHeads{{{1, 1, 1, 64, 64, false, false},
                                             {2, 4, 2, 24, 40, true, true},
                                             {1, 1, 1, 128, 128, true, false},
                                             {1, 3, 3, 16, 72, false, true},
                                             {2, 4, 1, 128, 64, false, false}}};

/// Shares of the largest number: states are float32 whatever the dtype, and products are of the dtype.
double bound_of(DType dtype) { return dtype == DType::f32 ? 2e-5 : dtype == DType::bf16 ? 1.5e-2 : 3e-3; }

}  // namespace

LinearCheck::LinearCheck(const CheckRequest& request) : request_(request) {
  for (const LinearKernelInfo& kernel : linear_kernels()) {
    const bool wanted = kernel.name.starts_with(request.kernel) && (!request.dtype || kernel.dtype == *request.dtype) &&
                        (!request.device || kernel.device == request.device->type);
    if (wanted && why_not_linear(kernel.name).empty()) kernels_.push_back(kernel);
  }
  lacking_ = !kernels_.empty() && (request.dropout || request.sinks || request.reorder);
  if (lacking_) kernels_.clear();
  if (kernels_.empty()) return;
  if (request.given) {
    add(request.given->name, request.given->mask);
    return;
  }
  for (const corpus::Entry& entry : corpus::entries()) {
    if (!request.mask.empty() && entry.name != request.mask) continue;
    std::vector<Case> before;
    if (request.quick) before = cases_;
    for (const corpus::Size& size : corpus::awkward_sizes()) {
      if (size.rows != size.columns || size.rows < 16 || !entry.accepts(size)) continue;
      if (request.quick) cases_ = before;  // one size an entry: the last
      add(entry.name, entry.build(size));
    }
  }
}

void LinearCheck::add(const std::string& name, const Mask& mask) {
  const MaskShape& shape = mask.shape();
  if (shape.rows != shape.columns || !is_tree(mask)) return;
  const LinearHeads& heads = kHeads[cases_.size() % kHeads.size()];
  LinearProblem problem;
  problem.batch = shape.batch == 1 ? heads.batch : shape.batch;
  problem.length = shape.rows;
  problem.heads = heads.heads;
  problem.key_heads = heads.key_heads;
  problem.key_dim = heads.key_dim;
  problem.value_dim = heads.value_dim;
  problem.normalize = heads.normalize;
  cases_.push_back({name + " of " + std::to_string(shape.rows) + ", d " + std::to_string(heads.key_dim) + "/" +
                        std::to_string(heads.value_dim) + (heads.normalize ? ", normalized" : ""),
                    mask, problem, heads.states});
}

std::vector<KernelVerdict> LinearCheck::run(const std::function<void(const std::string& name)>& begin) const {
  std::vector<KernelVerdict> verdicts;
  for (const LinearKernelInfo& kernel : kernels_) verdicts.push_back({kernel.name, 0, 0, {}});
  for (const Case& one : cases_) {
    begin(one.name);
    for (std::size_t i = 0; i < kernels_.size(); ++i)
      check(one, kernels_[i], request_.device.value_or(Device{kernels_[i].device, 0}), verdicts[i]);
  }
  return verdicts;
}

void LinearCheck::check(const Case& one, const LinearKernelInfo& kernel, Device device, KernelVerdict& verdict) {
  LinearProblem problem = one.problem;
  problem.dtype = kernel.dtype;
  problem.device = device;
  const LinearPlan plan = linear_plan(one.mask, problem, kernel.name);
  const LinearTensors tensors(plan, 1, mild_gates(), one.states);
  const PlacedLinearTensors placed(tensors, device);
  linear_forward(plan, placed.forward());
  linear_backward(plan, placed.backward());
  placed.fetch();
  ++verdict.cases;
  for (const LinearError& error : linear_errors(plan, one.mask, tensors)) {
    const double ratio = error.worst / bound_of(kernel.dtype);
    if (ratio <= verdict.worst && !verdict.where.empty()) continue;
    verdict.worst = ratio;
    verdict.where = error.name + " of " + one.name;
  }
}

}  // namespace flashmask::check
