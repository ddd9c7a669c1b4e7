// SPDX-License-Identifier: Apache-2.0
#include "flashmask/reorder.h"

#include <tuple>
#include <vector>

#include "c_api/convert.h"
#include "c_api/handles.h"
#include "flashmask/attention.h"
#include "flashmask/builders.h"
#include "mask/scrambled_masks.h"

namespace flashmask::c_api {
namespace {

void expect_same(const flashmask_reordering_view& view, const Reordering& expected) {
  const Reordering seen{expected.mask,
                        {view.rows, view.rows + expected.rows.size()},
                        {view.columns, view.columns + expected.columns.size()},
                        {view.tile_rows, view.tile_columns},
                        view.tiles_before,
                        view.tiles_after,
                        view.gained != 0,
                        view.why};
  const auto facts = [](const Reordering& r) { return std::tuple(r.gained, r.tiles_before, r.tiles_after, r.why); };
  EXPECT_EQ(facts(seen), facts(expected));
  EXPECT_EQ(seen.tile, expected.tile);
  EXPECT_EQ(seen.rows, expected.rows);
  EXPECT_EQ(seen.columns, expected.columns);
}

PlanHandle make_plan(const flashmask_mask& mask, bool reorder) {
  flashmask_problem problem = FLASHMASK_INIT(flashmask_problem);
  problem.batch = problem.query_heads = problem.kv_heads = 1;
  problem.query_length = problem.key_length = mask.mask.shape().rows;
  problem.head_dim = problem.value_dim = 16;
  flashmask_plan_options options = FLASHMASK_INIT(flashmask_plan_options);
  options.reorder = reorder ? 1 : 0;
  flashmask_plan* plan = nullptr;
  EXPECT_EQ(flashmask_plan_create(&mask, &problem, &options, &plan), FLASHMASK_OK) << flashmask_last_error();
  return PlanHandle(plan);
}

TEST(Reordering, IsThatOfTheLibrary) {
  const flashmask_mask mask{test::scrambled_band(512, 5)};
  const Reordering expected = reorder(mask.mask, {64, 32});
  ASSERT_TRUE(expected.gained);
  flashmask_reordering* made = nullptr;
  ASSERT_EQ(flashmask_mask_reorder(&mask, 64, 32, &made), FLASHMASK_OK) << flashmask_last_error();
  const ReorderingHandle owner(made);
  flashmask_reordering_view view = FLASHMASK_INIT(flashmask_reordering_view);
  ASSERT_EQ(flashmask_reordering_get(made, &view), FLASHMASK_OK);
  expect_same(view, expected);
  const MaskHandle reordered = make(flashmask_reordering_get_mask, made);
  EXPECT_EQ(expand(reordered->mask), expand(expected.mask));
  const MaskHandle permuted = make(flashmask_mask_permute, &mask, view.rows, view.columns);
  EXPECT_EQ(expand(permuted->mask), expand(expected.mask));
}

TEST(Reordering, OfAPlanIsSeen) {
  const flashmask_mask mask{test::scrambled_band(512, 5)};
  flashmask_reordering_view view = FLASHMASK_INIT(flashmask_reordering_view);
  ASSERT_EQ(flashmask_plan_reordering(make_plan(mask, false).get(), &view), FLASHMASK_OK);
  EXPECT_EQ(view.why, nullptr);
  const PlanHandle plan = make_plan(mask, true);
  ASSERT_EQ(flashmask_plan_reordering(plan.get(), &view), FLASHMASK_OK);
  EXPECT_NE(view.gained, 0);
  expect_same(view, reorder(mask.mask, {view.tile_rows, view.tile_columns}));
}

TEST(Reordering, OrdersAGraph) {
  // The path 2 - 0 - 3 - 1.
  const std::vector<std::int64_t> offsets{0, 2, 3, 4, 6}, neighbours{2, 3, 3, 0, 0, 1};
  std::vector<std::int64_t> order(4);
  ASSERT_EQ(flashmask_reverse_cuthill_mckee(4, offsets.data(), neighbours.data(), 6, order.data()), FLASHMASK_OK);
  EXPECT_EQ(order, reverse_cuthill_mckee(offsets, neighbours));
  expect_refused(flashmask_reverse_cuthill_mckee(-1, offsets.data(), neighbours.data(), 6, order.data()),
                 FLASHMASK_INVALID_ARGUMENT, "nodes");
  expect_refused(flashmask_reverse_cuthill_mckee(4, offsets.data(), neighbours.data(), 6, nullptr),
                 FLASHMASK_INVALID_ARGUMENT, "order");
}

TEST(Reordering, RefusesWhatTheLibraryRefuses) {
  const flashmask_mask mask{masks::full(2, 3)};
  flashmask_reordering* made = nullptr;
  expect_refused(flashmask_mask_reorder(&mask, 0, 64, &made), FLASHMASK_INVALID_ARGUMENT, "tile is 0 x 64");
  expect_refused(flashmask_mask_reorder(nullptr, 64, 64, &made), FLASHMASK_INVALID_ARGUMENT, "mask");
  const std::vector<std::int64_t> rows{1, 0}, columns{2, 0, 2};
  flashmask_mask* permuted = nullptr;
  expect_refused(flashmask_mask_permute(&mask, rows.data(), columns.data(), &permuted), FLASHMASK_INVALID_ARGUMENT,
                 "columns[2] is 2, as columns[0] is");
  expect_refused(flashmask_mask_permute(&mask, nullptr, columns.data(), &permuted), FLASHMASK_INVALID_ARGUMENT, "rows");
}

}  // namespace
}  // namespace flashmask::c_api
