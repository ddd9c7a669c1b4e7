// SPDX-License-Identifier: Apache-2.0
#include "flashmask/kernels.h"

#include <cstdlib>
#include <vector>

#include "c_api/handles.h"

namespace flashmask::c_api {
namespace {

std::vector<flashmask_kernel_info> listed() {
  std::int64_t count = 0;
  EXPECT_EQ(flashmask_kernel_count(&count), FLASHMASK_OK);
  std::vector<flashmask_kernel_info> infos(static_cast<std::size_t>(count), FLASHMASK_INIT(flashmask_kernel_info));
  for (std::size_t i = 0; i < infos.size(); ++i)
    EXPECT_EQ(flashmask_kernel_get(static_cast<std::int64_t>(i), &infos[i]), FLASHMASK_OK) << flashmask_last_error();
  return infos;
}

TEST(Kernels, AreThoseOfTheLibraryInItsOrder) {
  const std::vector<KernelInfo> expected = kernels();
  const std::vector<flashmask_kernel_info> given = listed();
  ASSERT_EQ(given.size(), expected.size());
  for (std::size_t i = 0; i < given.size(); ++i) {
    EXPECT_EQ(given[i].name, expected[i].name);
    EXPECT_EQ(given[i].arch, expected[i].arch);
    EXPECT_EQ(given[i].direction, static_cast<std::int32_t>(expected[i].direction));
    EXPECT_EQ(given[i].dtype, static_cast<std::int32_t>(expected[i].dtype));
    EXPECT_EQ(given[i].device_type, static_cast<std::int32_t>(expected[i].device));
    EXPECT_EQ(given[i].form, static_cast<std::int32_t>(expected[i].predicate));
    EXPECT_EQ(given[i].tile_rows, expected[i].tile.rows);
    EXPECT_EQ(given[i].tile_columns, expected[i].tile.columns);
    setenv("FLASHMASK_KERNEL", given[i].name, 1);  // what is taken by name alone runs
    EXPECT_EQ(given[i].why_not, why_not(expected[i]));
    unsetenv("FLASHMASK_KERNEL");
  }
}

TEST(Kernels, SayThatTheOverrideVariableRefusesThem) {
  setenv("FLASHMASK_ISA", "scalar", 1);
  for (const flashmask_kernel_info& info : listed())
    EXPECT_EQ(std::string(info.why_not).empty(), std::string(info.arch) == "scalar") << info.name;
  unsetenv("FLASHMASK_ISA");
}

TEST(Kernels, TextsOutliveLaterCalls) {
  unsetenv("FLASHMASK_ISA");
  const std::vector<flashmask_kernel_info> before = listed();
  setenv("FLASHMASK_ISA", "scalar", 1);
  listed();
  unsetenv("FLASHMASK_ISA");
  const std::vector<flashmask_kernel_info> after = listed();
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_STREQ(before[i].why_not, after[i].why_not);
}

TEST(Kernels, RefuseAnIndexPastTheLast) {
  flashmask_kernel_info info = FLASHMASK_INIT(flashmask_kernel_info);
  const auto count = static_cast<std::int64_t>(kernels().size());
  expect_refused(flashmask_kernel_get(count, &info), FLASHMASK_INVALID_ARGUMENT, "index is " + std::to_string(count));
  expect_refused(flashmask_kernel_get(-1, &info), FLASHMASK_INVALID_ARGUMENT, "index is -1");
  EXPECT_EQ(info.name, nullptr);
  expect_refused(flashmask_kernel_get(0, nullptr), FLASHMASK_INVALID_ARGUMENT, "info is NULL");
  expect_refused(flashmask_kernel_count(nullptr), FLASHMASK_INVALID_ARGUMENT, "count is NULL");
}

TEST(InstructionSets, AreThoseOfTheMachine) {
  std::string expected;
  for (const std::string& name : instruction_sets()) expected += (expected.empty() ? "" : " ") + name;
  const char* names = nullptr;
  ASSERT_EQ(flashmask_instruction_sets(&names), FLASHMASK_OK);
  EXPECT_EQ(names, expected);
  expect_refused(flashmask_instruction_sets(nullptr), FLASHMASK_INVALID_ARGUMENT, "names is NULL");
}

TEST(CApi, ReadsAndReportsChangesOfScores) {
  EXPECT_EQ(flashmask_score_check("softcap(50) | function(mul(score, score))"), FLASHMASK_OK);
  expect_refused(flashmask_score_check("function(mul(score, none))"), FLASHMASK_INVALID_ARGUMENT,
                 "at character 12: expected a number");
  expect_refused(flashmask_score_check(nullptr), FLASHMASK_INVALID_ARGUMENT, "change is NULL");
  const char* text = nullptr;
  ASSERT_EQ(flashmask_score_report("mul(score, score)", nullptr, 64, 0, &text), FLASHMASK_OK);
  EXPECT_NE(std::string(text).find("function(mul(score, score))"), std::string::npos) << text;
  expect_refused(flashmask_score_report("score", "sm_1", 64, 0, &text), FLASHMASK_INVALID_ARGUMENT, "sm_80");
}

}  // namespace
}  // namespace flashmask::c_api
