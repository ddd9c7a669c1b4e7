// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "flashmask/c_api.h"

namespace flashmask::c_api {
namespace {

/// Documents of two and one tokens, causal: row and column have one number, and the row is no earlier.
class Documents {
 public:
  Documents() {
    formula.conditions = conditions;
    formula.count = 3;
    formula.shape = {1, 1, 3, 3};
    formula.slots = 2;
  }

  const std::int32_t ids[3] = {4, 4, 7};
  const flashmask_token_numbers id = {ids, {0, 0, 1}, FLASHMASK_NUMBER_I32}, index = {};
  flashmask_condition conditions[3] = {
      {FLASHMASK_ALL_OF, 2, {}, {}}, {FLASHMASK_GREATER_EQUAL, 0, index, index}, {FLASHMASK_EQUAL, 0, id, id}};
  flashmask_formula formula = FLASHMASK_INIT(flashmask_formula);
};

TEST(FormulaInC, GivesRangesOfMaskedAndOfVisibleRows) {
  Documents documents;
  std::vector<std::int32_t> ranges(12);
  std::int32_t found = 0;
  ASSERT_EQ(flashmask_formula_ranges(&documents.formula, ranges.data(), &found), FLASHMASK_OK)
      << flashmask_last_error();
  EXPECT_EQ(found, 2);
  EXPECT_EQ(ranges, (std::vector<std::int32_t>{2, 3, 3, 3, 0, 1, 2, 3, 0, 2, 3, 3}));
  documents.formula.visible = 1;
  documents.formula.slots = 1;
  ranges.resize(6);
  ASSERT_EQ(flashmask_formula_ranges(&documents.formula, ranges.data(), &found), FLASHMASK_OK)
      << flashmask_last_error();
  EXPECT_EQ(found, 1);
  EXPECT_EQ(ranges, (std::vector<std::int32_t>{0, 2, 1, 2, 2, 3}));
}

TEST(FormulaInC, TakesNoWorkspaceOnTheCpu) {
  const Documents documents;
  size_t bytes = 1;
  ASSERT_EQ(flashmask_formula_workspace(&documents.formula, &bytes), FLASHMASK_OK) << flashmask_last_error();
  EXPECT_EQ(bytes, 0U);
}

TEST(FormulaInC, RefusesWhatIsNone) {
  const auto refusal = [](const auto& change) {
    Documents documents;
    change(documents);
    std::vector<std::int32_t> ranges(12);
    std::int32_t found = 0;
    EXPECT_EQ(flashmask_formula_ranges(&documents.formula, ranges.data(), &found), FLASHMASK_INVALID_ARGUMENT);
    return std::string(flashmask_last_error());
  };
  EXPECT_EQ(refusal([](Documents& all) { all.formula.slots = 0; }), "formula.slots is 0; give 1 to 32");
  EXPECT_EQ(refusal([](Documents& all) { all.conditions[1].kind = 10; }),
            "formula.conditions[1].kind is 10; give 0 to 9");
  EXPECT_EQ(refusal([](Documents& all) { all.conditions[2].rows.type = 5; }),
            "formula.conditions[2].rows.type is 5; give 0 to 4");
  EXPECT_EQ(refusal([](Documents& all) { all.formula.conditions = nullptr; }),
            "formula.conditions is NULL; pass a valid pointer");
}

}  // namespace
}  // namespace flashmask::c_api
