// SPDX-License-Identifier: Apache-2.0
#include "mask/formula/formula.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "c_api/sized_struct.h"

using flashmask::Condition;
using flashmask::ConditionKind;
using flashmask::DeviceType;
using flashmask::Error;
using flashmask::Formula;
using flashmask::NumberType;
using flashmask::Status;
using flashmask::TokenNumbers;
using flashmask::c_api::enumerator;
using flashmask::c_api::guard;
using flashmask::c_api::read_struct;
using flashmask::c_api::require;

namespace {

TokenNumbers to_numbers(const flashmask_token_numbers& given, const std::string& name) {
  const auto& strides = given.strides;
  return {given.data, {strides[0], strides[1], strides[2]}, enumerator(given.type, NumberType::f64, name + ".type")};
}

Condition to_condition(const flashmask_condition& given, const std::string& name) {
  Condition made{enumerator(given.kind, ConditionKind::column_fact, name + ".kind"), given.parts, {}, {}};
  if (made.kind <= ConditionKind::disjunction) return made;
  if (made.kind != ConditionKind::column_fact) made.rows = to_numbers(given.rows, name + ".rows");
  if (made.kind != ConditionKind::row_fact) made.columns = to_numbers(given.columns, name + ".columns");
  return made;
}

Formula to_formula(const flashmask_formula& given) {
  Formula made{{}, flashmask::c_api::to_shape(&given.shape), given.visible != 0, given.slots};
  if (given.slots < 1 || given.slots > flashmask::kMostSlots) {
    throw Error(Status::invalid_argument, "formula.slots is " + std::to_string(given.slots) + "; give 1 to " +
                                              std::to_string(flashmask::kMostSlots));
  }
  for (const flashmask_condition& each : flashmask::c_api::array(given.conditions, given.count, "formula.conditions"))
    made.conditions.push_back(to_condition(each, "formula.conditions[" + std::to_string(made.conditions.size()) + "]"));
  return made;
}

DeviceType device_of(const flashmask_formula& given) {
  return enumerator(given.device_type, DeviceType::cuda, "formula.device_type");
}

}  // namespace

flashmask_status flashmask_formula_workspace(const flashmask_formula* formula, size_t* bytes) {
  return guard([&] {
    const flashmask_formula given = read_struct(formula, "formula");
    const bool on_gpu = device_of(given) == DeviceType::cuda;
    require(bytes, "bytes") = on_gpu ? flashmask::formula_workspace(to_formula(given)) : 0;
  });
}

flashmask_status flashmask_formula_ranges(const flashmask_formula* formula, int32_t* ranges, int32_t* found) {
  return guard([&] {
    const flashmask_formula given = read_struct(formula, "formula");
    const Formula asked = to_formula(given);
    require(ranges, "ranges");
    require(found, "found");
    if (device_of(given) == DeviceType::cpu) {
      *found = flashmask::find_ranges(asked, ranges, flashmask::default_executor());
      return;
    }
    const std::size_t needed = flashmask::formula_workspace(asked);
    if (given.workspace_bytes < needed) {
      throw Error(Status::invalid_argument, "formula.workspace_bytes is " + std::to_string(given.workspace_bytes) +
                                                "; expected the " + std::to_string(needed) +
                                                " of flashmask_formula_workspace()");
    }
    flashmask::find_ranges_on_gpu(asked, ranges, found, given.workspace, {DeviceType::cuda, given.device_index},
                                  given.stream);
  });
}
