#include "flashmask/reorder.h"

#include <algorithm>
#include <string>
#include <vector>

#include "c_api/convert.h"
#include "c_api/handles.h"
#include "flashmask/attention.h"
#include "flashmask/builders.h"
#include "mask/scrambled_masks.h"

namespace flashmask::c_api {
namespace {

void expect_same(const flashmask_reordering_view& view, const Reordering& expected) {
  EXPECT_EQ(view.gained != 0, expected.gained);
  EXPECT_EQ(view.tile_rows, expected.tile.rows);
  EXPECT_EQ(view.tile_columns, expected.tile.columns);
  EXPECT_EQ(view.tiles_before, expected.tiles_before);
  EXPECT_EQ(view.tiles_after, expected.tiles_after);
  EXPECT_TRUE(std::equal(expected.rows.begin(), expected.rows.end(), view.rows));
  EXPECT_TRUE(std::equal(expected.columns.begin(), expected.columns.end(), view.columns));
  EXPECT_EQ(view.why, expected.why);
}

TEST(Reordering, IsThatOfTheLibrary) {
  const flashmask_mask mask{test::scrambled_band(512, 5)};
  const Reordering expected = reorder(mask.mask, {64, 32});
  ASSERT_TRUE(expected.gained);
  flashmask_reordering* made = nullptr;
  ASSERT_EQ(flashmask_mask_reorder(&mask, 64, 32, &made), FLASHMASK_OK) << flashmask_last_error();
  const ReorderingHandle owner(made);
  flashmask_reordering_view view{};
  ASSERT_EQ(flashmask_reordering_get(made, &view), FLASHMASK_OK);
  expect_same(view, expected);
  const MaskHandle reordered = make(flashmask_reordering_get_mask, made);
  EXPECT_EQ(expand(reordered->mask), expand(expected.mask));
  const MaskHandle permuted = make(flashmask_mask_permute, &mask, view.rows, view.columns);
  EXPECT_EQ(expand(permuted->mask), expand(expected.mask));
}

TEST(Reordering, OfAPlanIsSeen) {
  const flashmask_mask mask{test::scrambled_band(512, 5)};
  flashmask_problem problem{};
  problem.batch = problem.query_heads = problem.kv_heads = 1;
  problem.query_length = problem.key_length = 512;
  problem.head_dim = problem.value_dim = 16;
  for (const bool wanted : {false, true}) {
    flashmask_plan_options options{};
    options.reorder = wanted ? 1 : 0;
    flashmask_plan* made = nullptr;
    ASSERT_EQ(flashmask_plan_create(&mask, &problem, &options, &made), FLASHMASK_OK) << flashmask_last_error();
    const PlanHandle owner(made);
    flashmask_reordering_view view{};
    ASSERT_EQ(flashmask_plan_reordering(made, &view), FLASHMASK_OK);
    EXPECT_EQ(view.gained != 0, wanted);
    EXPECT_EQ(view.why != nullptr, wanted);
    if (wanted) expect_same(view, reorder(mask.mask, {view.tile_rows, view.tile_columns}));
  }
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
