// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "c_api/guard.h"
#include "c_api/struct_layout.h"

namespace {

template <typename Struct>
std::string line() {
  using Layout = flashmask::c_api::Layout<Struct>;
  std::string text = Layout::name + (" " + std::to_string(sizeof(Struct)));
  for (const auto& [name, offset, size] : Layout::fields)
    text += std::string(" ") + name + ":" + std::to_string(offset) + ":" + std::to_string(size);
  return text + "\n";
}

template <typename... Structs>
std::string lines() {
  return (line<Structs>() + ...);
}

}  // namespace

flashmask_status flashmask_struct_layouts(const char** text) {
  return flashmask::c_api::guard([&] {
    static const auto& all = *new std::string(
        lines<flashmask_mask_shape, flashmask_shared_question, flashmask_span, flashmask_hashed_token,
              flashmask_big_bird, flashmask_neighbourhood_axis, flashmask_visible_pair, flashmask_startend_row_indices,
              flashmask_explanation, flashmask_draw_options, flashmask_row_ranges_view, flashmask_nodes_view,
              flashmask_reordering_view, flashmask_partition_options, flashmask_partition_view, flashmask_tensor,
              flashmask_problem, flashmask_executor, flashmask_plan_options, flashmask_plan_place,
              flashmask_device_mask, flashmask_compiled_kernel, flashmask_token_numbers, flashmask_condition,
              flashmask_formula, flashmask_execution, flashmask_forward_tensors, flashmask_backward_tensors,
              flashmask_tangent_tensors, flashmask_kernel_info, flashmask_merge_tensors, flashmask_merge_gradients,
              flashmask_linear_problem, flashmask_linear_plan_view, flashmask_linear_forward_tensors,
              flashmask_linear_backward_tensors, flashmask_reference_linear_tensors, flashmask_reference_inputs>());
    flashmask::c_api::require(text, "text") = all.c_str();
  });
}
