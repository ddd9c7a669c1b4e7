// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <vector>

#include "flashmask/builders.h"
#include "kernels.h"

namespace flashmask {
namespace {

using check::AttentionTensors;
using check::HostTensor;

class SkippedGradients : public test::EveryLevel {
 protected:
  Problem grouped() const {
    Problem p = problem(257, 257);
    p.query_heads = 4;
    p.kv_heads = 2;
    return p;
  }

  PlanOptions skipping(bool query, bool keys) const {
    PlanOptions options = test::forced(GetParam());
    options.skip_query_gradient = query;
    options.skip_key_gradients = keys;
    return options;
  }

  AttentionTensors attended(const Mask& mask, const Problem& p, const PlanOptions& options) const {
    AttentionTensors tensors(p, 5);
    for (HostTensor* gradient : {&tensors.grad_q, &tensors.grad_k, &tensors.grad_v})
      for (std::int64_t i = 0; i < gradient->size(); ++i) gradient->set(i, kUntouched);
    test::attend(plan(mask, p, options), tensors);
    return tensors;
  }

  static bool is_untouched(const HostTensor& tensor) {
    for (std::int64_t i = 0; i < tensor.size(); ++i)
      if (tensor.at(i) != kUntouched) return false;
    return true;
  }

  static constexpr float kUntouched = 4096;
};

INSTANTIATE_TEST_SUITE_P(Cpu, SkippedGradients, testing::ValuesIn(test::levels()), test::level_name);

TEST_P(SkippedGradients, LeaveTheOthersTheirBits) {
  const std::vector<std::int64_t> lengths = {40, 0, 150, 30};  // the last rows see nothing
  for (const Mask& mask : {masks::causal(257, 257), masks::sliding_window(257, 257, 20),
                           masks::causal_document(lengths, 257), masks::full(257, 257)}) {
    const Problem p = grouped();
    const AttentionTensors all = attended(mask, p, skipping(false, false));
    const AttentionTensors keys = attended(mask, p, skipping(true, false));
    const AttentionTensors query = attended(mask, p, skipping(false, true));
    EXPECT_TRUE(test::same_bits(all.grad_q, query.grad_q));
    EXPECT_TRUE(test::same_bits(all.grad_k, keys.grad_k));
    EXPECT_TRUE(test::same_bits(all.grad_v, keys.grad_v));
  }
}

/// That nothing is written shows that nothing was computed for it.
TEST_P(SkippedGradients, AreNotWritten) {
  const Mask mask = masks::causal(257, 257);
  const Problem p = grouped();
  EXPECT_TRUE(is_untouched(attended(mask, p, skipping(true, false)).grad_q));
  const AttentionTensors query = attended(mask, p, skipping(false, true));
  EXPECT_TRUE(is_untouched(query.grad_k));
  EXPECT_TRUE(is_untouched(query.grad_v));
}

}  // namespace
}  // namespace flashmask
