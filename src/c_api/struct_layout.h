// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "flashmask/c_api.h"

namespace flashmask::c_api {

struct Field {
  const char* name;
  std::size_t offset;
  std::size_t size;
};

/// Name and fields of a struct of the C ABI.
template <typename Struct>
struct Layout;

#define LAYOUT(type, ...)                            \
  template <>                                        \
  struct Layout<type> {                              \
    using Struct = type;                             \
    static constexpr const char* name = #type;       \
    static constexpr Field fields[] = {__VA_ARGS__}; \
  }
#define FIELD(field) \
  Field { #field, offsetof(Struct, field), sizeof(Struct::field) }

LAYOUT(flashmask_mask_shape, FIELD(batch), FIELD(heads), FIELD(rows), FIELD(columns));
LAYOUT(flashmask_shared_question, FIELD(struct_size), FIELD(question), FIELD(answers), FIELD(answer_count));
LAYOUT(flashmask_span, FIELD(begin), FIELD(end));
LAYOUT(flashmask_hashed_token, FIELD(bucket), FIELD(position));
LAYOUT(flashmask_big_bird, FIELD(struct_size), FIELD(block), FIELD(window_blocks), FIELD(global_blocks),
       FIELD(random_blocks), FIELD(heads), FIELD(seed));
LAYOUT(flashmask_neighbourhood_axis, FIELD(struct_size), FIELD(length), FIELD(kernel), FIELD(dilation));
LAYOUT(flashmask_visible_pair, FIELD(row), FIELD(column));
LAYOUT(flashmask_startend_row_indices, FIELD(struct_size), FIELD(vectors), FIELD(causal), FIELD(size));
LAYOUT(flashmask_explanation, FIELD(struct_size), FIELD(form), FIELD(tile_rows), FIELD(tile_columns),
       FIELD(first_empty_row_count), FIELD(first_empty_rows), FIELD(empty_rows), FIELD(visible_pairs),
       FIELD(skipped_tiles), FIELD(partial_tiles), FIELD(full_tiles), FIELD(density), FIELD(waste), FIELD(mask_bytes),
       FIELD(schedule_bytes), FIELD(dense_bytes));
LAYOUT(flashmask_draw_options, FIELD(struct_size), FIELD(batch), FIELD(head), FIELD(width), FIELD(colour));
LAYOUT(flashmask_row_ranges_view, FIELD(struct_size), FIELD(ends), FIELD(size), FIELD(values));
LAYOUT(flashmask_nodes_view, FIELD(struct_size), FIELD(count), FIELD(tokens), FIELD(begins), FIELD(ends),
       FIELD(parents), FIELD(levels), FIELD(predecessors));
LAYOUT(flashmask_reordering_view, FIELD(struct_size), FIELD(gained), FIELD(tile_rows), FIELD(tile_columns),
       FIELD(tiles_before), FIELD(tiles_after), FIELD(rows), FIELD(columns), FIELD(why));
LAYOUT(flashmask_partition_options, FIELD(struct_size), FIELD(division), FIELD(aligned), FIELD(tile),
       FIELD(query_heads), FIELD(kv_heads), FIELD(head_dim), FIELD(element_bytes), FIELD(flops_per_ns),
       FIELD(bytes_per_ns), FIELD(exchange_ns), FIELD(node_bytes_per_ns));
LAYOUT(flashmask_partition_view, FIELD(struct_size), FIELD(tokens), FIELD(ranks), FIELD(tile), FIELD(aligned),
       FIELD(run_count), FIELD(runs), FIELD(why));
LAYOUT(flashmask_tensor, FIELD(data), FIELD(dtype), FIELD(device_type), FIELD(device_index), FIELD(rank), FIELD(shape),
       FIELD(strides));
LAYOUT(flashmask_problem, FIELD(struct_size), FIELD(batch), FIELD(query_length), FIELD(key_length), FIELD(query_heads),
       FIELD(kv_heads), FIELD(head_dim), FIELD(value_dim), FIELD(dtype), FIELD(device_type), FIELD(device_index),
       FIELD(scale), FIELD(dropout), FIELD(softcap), FIELD(bias), FIELD(double_scale), FIELD(change));
LAYOUT(flashmask_executor, FIELD(struct_size), FIELD(context), FIELD(workers), FIELD(run));
LAYOUT(flashmask_plan_options, FIELD(struct_size), FIELD(kernel), FIELD(executor), FIELD(visit), FIELD(form),
       FIELD(reorder), FIELD(deterministic), FIELD(forward_tiles), FIELD(backward_tiles), FIELD(skip_query_gradient),
       FIELD(skip_key_gradients), FIELD(invariant), FIELD(compile_when_called), FIELD(compile_backward_later));
LAYOUT(flashmask_compiled_kernel, FIELD(struct_size), FIELD(name), FIELD(compiler), FIELD(origin), FIELD(seconds),
       FIELD(spilled));
LAYOUT(flashmask_plan_place, FIELD(struct_size), FIELD(stream), FIELD(memory), FIELD(bytes), FIELD(made));
LAYOUT(flashmask_device_mask, FIELD(struct_size), FIELD(kind), FIELD(vectors), FIELD(causal), FIELD(shape), FIELD(data),
       FIELD(strides), FIELD(keep_blocks), FIELD(keep_batch), FIELD(keep_heads), FIELD(most_documents));
LAYOUT(flashmask_token_numbers, FIELD(data), FIELD(strides), FIELD(type));
LAYOUT(flashmask_condition, FIELD(kind), FIELD(parts), FIELD(rows), FIELD(columns));
LAYOUT(flashmask_formula, FIELD(struct_size), FIELD(conditions), FIELD(count), FIELD(shape), FIELD(visible),
       FIELD(slots), FIELD(device_type), FIELD(device_index), FIELD(stream), FIELD(workspace), FIELD(workspace_bytes));
LAYOUT(flashmask_execution, FIELD(struct_size), FIELD(executor), FIELD(workspace), FIELD(workspace_bytes),
       FIELD(stream), FIELD(dropout_seed), FIELD(dropout_offset), FIELD(dropout_on_device), FIELD(dropout_place),
       FIELD(dropout_place_size));
LAYOUT(flashmask_forward_tensors, FIELD(struct_size), FIELD(q), FIELD(k), FIELD(v), FIELD(o), FIELD(lse), FIELD(sinks),
       FIELD(alibi_slopes), FIELD(query_positions), FIELD(key_positions), FIELD(bias), FIELD(bias_origin),
       FIELD(max_scores), FIELD(operands));
LAYOUT(flashmask_backward_tensors, FIELD(struct_size), FIELD(q), FIELD(k), FIELD(v), FIELD(o), FIELD(lse),
       FIELD(grad_o), FIELD(grad_lse), FIELD(grad_q), FIELD(grad_k), FIELD(grad_v), FIELD(sinks), FIELD(grad_sinks),
       FIELD(alibi_slopes), FIELD(query_positions), FIELD(key_positions), FIELD(bias), FIELD(bias_origin),
       FIELD(grad_bias), FIELD(operands));
LAYOUT(flashmask_tangent_tensors, FIELD(struct_size), FIELD(q), FIELD(k), FIELD(v), FIELD(o), FIELD(lse),
       FIELD(tangent_q), FIELD(tangent_k), FIELD(tangent_v), FIELD(tangent_o), FIELD(tangent_lse), FIELD(sinks),
       FIELD(alibi_slopes), FIELD(query_positions), FIELD(key_positions), FIELD(bias), FIELD(bias_origin),
       FIELD(operands));
LAYOUT(flashmask_kernel_info, FIELD(struct_size), FIELD(name), FIELD(arch), FIELD(direction), FIELD(dtype),
       FIELD(device_type), FIELD(form), FIELD(tile_rows), FIELD(tile_columns), FIELD(why_not), FIELD(head_dim),
       FIELD(value_dim), FIELD(features), FIELD(compute_capability_major), FIELD(compute_capability_minor));
LAYOUT(flashmask_merge_tensors, FIELD(struct_size), FIELD(o1), FIELD(lse1), FIELD(o2), FIELD(lse2), FIELD(o),
       FIELD(lse), FIELD(more), FIELD(more_count));
LAYOUT(flashmask_merge_gradients, FIELD(struct_size), FIELD(o1), FIELD(lse1), FIELD(o2), FIELD(lse2), FIELD(o),
       FIELD(lse), FIELD(grad_o), FIELD(grad_lse), FIELD(grad_o1), FIELD(grad_lse1), FIELD(grad_o2), FIELD(grad_lse2),
       FIELD(more), FIELD(more_count));
LAYOUT(flashmask_linear_problem, FIELD(struct_size), FIELD(batch), FIELD(length), FIELD(heads), FIELD(key_heads),
       FIELD(key_dim), FIELD(value_dim), FIELD(dtype), FIELD(device_type), FIELD(device_index), FIELD(scale),
       FIELD(normalize));
LAYOUT(flashmask_linear_plan_view, FIELD(struct_size), FIELD(nodes), FIELD(roots), FIELD(kernel));
LAYOUT(flashmask_linear_forward_tensors, FIELD(struct_size), FIELD(q), FIELD(k), FIELD(v), FIELD(log_forget),
       FIELD(log_input), FIELD(initial_state), FIELD(initial_normalizer), FIELD(initial_log_scale), FIELD(o),
       FIELD(final_state), FIELD(final_normalizer), FIELD(final_log_scale));
LAYOUT(flashmask_linear_backward_tensors, FIELD(struct_size), FIELD(q), FIELD(k), FIELD(v), FIELD(log_forget),
       FIELD(log_input), FIELD(initial_state), FIELD(initial_normalizer), FIELD(initial_log_scale), FIELD(o),
       FIELD(grad_o), FIELD(grad_final_state), FIELD(grad_final_normalizer), FIELD(grad_q), FIELD(grad_k),
       FIELD(grad_v), FIELD(grad_log_forget), FIELD(grad_log_input), FIELD(grad_initial_state),
       FIELD(grad_initial_normalizer));
LAYOUT(flashmask_reference_linear_tensors, FIELD(struct_size), FIELD(q), FIELD(k), FIELD(v), FIELD(log_forget),
       FIELD(log_input), FIELD(initial_state), FIELD(initial_normalizer), FIELD(initial_log_scale), FIELD(o),
       FIELD(final_state), FIELD(final_normalizer), FIELD(final_log_scale), FIELD(grad_o), FIELD(grad_final_state),
       FIELD(grad_final_normalizer), FIELD(grad_q), FIELD(grad_k), FIELD(grad_v), FIELD(grad_log_forget),
       FIELD(grad_log_input), FIELD(grad_initial_state), FIELD(grad_initial_normalizer));
LAYOUT(flashmask_reference_inputs, FIELD(struct_size), FIELD(q), FIELD(k), FIELD(v), FIELD(dropout_seed),
       FIELD(dropout_offset), FIELD(sinks), FIELD(sink_count), FIELD(dropout_place), FIELD(dropout_place_size),
       FIELD(alibi_slopes), FIELD(alibi_slope_count), FIELD(query_positions), FIELD(query_position_count),
       FIELD(key_positions), FIELD(key_position_count), FIELD(bias), FIELD(bias_shape), FIELD(bias_origin),
       FIELD(operands), FIELD(operand_shapes));

#undef LAYOUT
#undef FIELD

}  // namespace flashmask::c_api
