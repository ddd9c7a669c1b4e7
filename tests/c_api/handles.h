// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "flashmask/c_api.h"

namespace flashmask::c_api {

struct DestroyHandle {
  void operator()(flashmask_mask* mask) const { flashmask_mask_destroy(mask); }
  void operator()(flashmask_block_map* map) const { flashmask_block_map_destroy(map); }
  void operator()(flashmask_reordering* reordering) const { flashmask_reordering_destroy(reordering); }
  void operator()(flashmask_plan* plan) const { flashmask_plan_destroy(plan); }
};
using MaskHandle = std::unique_ptr<flashmask_mask, DestroyHandle>;
using BlockMapHandle = std::unique_ptr<flashmask_block_map, DestroyHandle>;
using ReorderingHandle = std::unique_ptr<flashmask_reordering, DestroyHandle>;
using PlanHandle = std::unique_ptr<flashmask_plan, DestroyHandle>;

/// In float32 on the CPU, with the scale that is usual.
inline flashmask_problem make_problem(std::int64_t batch, std::int64_t query_length, std::int64_t key_length,
                                      std::int64_t query_heads, std::int64_t kv_heads, std::int64_t head_dim,
                                      std::int64_t value_dim) {
  flashmask_problem problem = FLASHMASK_INIT(flashmask_problem);
  problem.batch = batch;
  problem.query_length = query_length;
  problem.key_length = key_length;
  problem.query_heads = query_heads;
  problem.kv_heads = kv_heads;
  problem.head_dim = head_dim;
  problem.value_dim = value_dim;
  return problem;
}

/// make(create, arguments…) calls create(arguments…, &mask) and expects it to succeed.
template <typename Create, typename... Arguments>
MaskHandle make(Create create, Arguments... arguments) {
  flashmask_mask* mask = nullptr;
  EXPECT_EQ(create(arguments..., &mask), FLASHMASK_OK) << flashmask_last_error();
  return MaskHandle(mask);
}

/// The same for block maps.
template <typename Create, typename... Arguments>
BlockMapHandle make_block_map(Create create, Arguments... arguments) {
  flashmask_block_map* map = nullptr;
  EXPECT_EQ(create(arguments..., &map), FLASHMASK_OK) << flashmask_last_error();
  return BlockMapHandle(map);
}

/// Expects a refusal whose message contains `part`.
inline void expect_refused(flashmask_status status, flashmask_status expected, const std::string& part) {
  EXPECT_EQ(status, expected);
  EXPECT_NE(std::string(flashmask_last_error()).find(part), std::string::npos) << flashmask_last_error();
}

}  // namespace flashmask::c_api
