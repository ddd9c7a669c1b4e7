// SPDX-License-Identifier: Apache-2.0
#include <flashmask/flashmask.h>

#include <cstdio>
#include <vector>

int main() {
  const auto mask = flashmask::masks::causal_document(std::vector<std::int64_t>{600, 300, 100}, 1024);  // 24 of padding
  const auto plan = flashmask::plan(mask, {.query_length = 1024, .key_length = 1024, .head_dim = 64, .value_dim = 64});
  std::vector<float> q(1024UL * 64, 0.5F), k(q), v(q), o(q), lse(1024);
  const auto view = [](auto& x) { return flashmask::contiguous(x.data(), flashmask::DType::f32, {1, 1024, 1, 64}); };
  const auto lse_view = flashmask::contiguous(lse.data(), flashmask::DType::f32, {1, 1, 1024});
  flashmask::forward(plan, {view(q), view(k), view(v), view(o), lse_view});
  std::printf("%slse of the last token: %g\n", to_string(explain(mask)).c_str(), lse[999]);
}
