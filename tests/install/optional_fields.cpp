// SPDX-License-Identifier: Apache-2.0
#include <flashmask/flashmask.h>

/// What may be left out may be left out: compiled with the warnings of strict users, by tests/install/CMakeLists.txt.
namespace {

flashmask::TensorView view(float* data) {
  return {.data = data, .rank = 4, .shape = {1, 8, 1, 4}, .strides = {32, 4, 4, 1}};
}
flashmask::TensorView rows(float* data) { return flashmask::contiguous(data, flashmask::DType::f32, {1, 1, 8}); }

}  // namespace

int main() {
  static float q[32], k[32], v[32], o[32], lse[8], grad_o[32], grad_q[32], grad_k[32], grad_v[32], grad_lse[8];
  const flashmask::Problem problem{.query_length = 8, .key_length = 8, .head_dim = 4, .value_dim = 4};
  const auto plan = flashmask::plan(flashmask::masks::causal_document({5, 3}, 8), problem, {.deterministic = true});
  flashmask::forward(plan, {.q = view(q), .k = view(k), .v = view(v), .o = view(o), .lse = rows(lse)});
  flashmask::backward(plan,
                      {.q = view(q),
                       .k = view(k),
                       .v = view(v),
                       .o = view(o),
                       .lse = rows(lse),
                       .grad_o = view(grad_o),
                       .grad_q = view(grad_q),
                       .grad_k = view(grad_k),
                       .grad_v = view(grad_v)},
                      {.executor = &flashmask::serial_executor()});
  const flashmask::MergePart part{.o = view(o), .lse = rows(lse)};
  flashmask::merge({.parts = {part}, .o = view(grad_o), .lse = rows(grad_lse)});
  const flashmask::MergeGradients gradients{
      .parts = {{.o = view(o), .lse = rows(lse), .grad_o = view(grad_q), .grad_lse = rows(grad_lse)}},
      .o = view(o),
      .lse = rows(lse),
      .grad_o = view(grad_o)};
  flashmask::merge_backward(gradients);
  const flashmask::DeviceRowIndices indices{.shape = {.rows = 8, .columns = 8}, .causal = true};
  const flashmask::DenseScores scores{.data = nullptr, .shape = {.rows = 8, .columns = 8}};
  return static_cast<int>(indices.vectors - 1 + static_cast<int>(scores.strides[0]));
}
