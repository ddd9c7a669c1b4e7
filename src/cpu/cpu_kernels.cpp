// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>

#include "cpu/instruction_set.h"
#include "cpu/launch.h"
#include "plan/kernel.h"

namespace flashmask {
namespace {

KernelInfo describe(const cpu::InstructionSet& set, Direction direction, DType dtype, MaskForm predicate) {
  KernelInfo info;
  info.arch = set.name;
  info.direction = direction;
  info.dtype = dtype;
  info.device = DeviceType::cpu;
  info.tile = direction == Direction::forward ? TileShape{cpu::kForwardRows, cpu::kForwardColumns}
                                              : TileShape{cpu::kBackwardRows, cpu::kBackwardColumns};
  info.predicate = predicate;
  info.head_dim = info.value_dim = kMaxHeadDim;
  info.features = {Feature::dropout,       Feature::deterministic, Feature::block_map, Feature::sinks,
                   Feature::softcap,       Feature::alibi,         Feature::invariant, Feature::bias,
                   Feature::distance_bias, Feature::any_change,    Feature::functions};
  if (direction == Direction::forward) info.features.add(Feature::max_scores);
  if (direction == Direction::backward && dtype != DType::f32) info.features.add(Feature::float32_key_gradients);
  info.name = info.arch + "." + to_string(direction) + "." + to_string(dtype) + ".dany.m" +
              std::to_string(info.tile.rows) + "n" + std::to_string(info.tile.columns) + "." +
              to_string(info.predicate);
  return info;
}

}  // namespace

KernelEntries cpu_kernels() {
  KernelEntries entries;
  for (const cpu::InstructionSet& set : cpu::instruction_sets()) {
    for (const cpu::KernelCode& code : set.kernels) {
      for (const MaskForm predicate : {MaskForm::intervals, MaskForm::bits}) {
        entries.push_back(cpu::forward_kernel(describe(set, Direction::forward, code.dtype, predicate), set, code));
        entries.push_back(
            cpu::backward_kernel(describe(set, Direction::backward, code.dtype, predicate), set, code.backward));
      }
      if (code.linear.forward != nullptr) entries.push_back(cpu::linear_kernel(set, code));
    }
  }
  return entries;
}

}  // namespace flashmask
