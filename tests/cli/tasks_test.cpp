// SPDX-License-Identifier: Apache-2.0
#include "cli/masks/tasks.h"

#include <gtest/gtest.h>

#include "flashmask/error.h"

namespace flashmask::cli {
namespace {

using Answers = std::vector<std::int64_t>;

/// Rows (10, 1), (20, 2), … of one prompt and one output.
LengthTable one_output(std::int64_t rows) {
  LengthTable table{.columns = {"prompt", "out"}, .values = {}};
  for (std::int64_t row = 1; row <= rows; ++row) table.values.insert(table.values.end(), {10 * row, row});
  return table;
}

Mask mask_of_one(Task task, const Document& document, std::int64_t seqlen) {
  const std::vector<Document> documents = {document};
  return mask_of(task, documents, {.documents = {0}, .tokens = document.tokens()}, seqlen);
}

/// One character a score, a line a row.
std::string picture(const Mask& mask) {
  std::string drawn;
  for (std::int64_t row = 0; row < mask.shape().rows; ++row) {
    for (std::int64_t column = 0; column < mask.shape().columns; ++column) {
      drawn += mask.visible(0, 0, row, column) ? '#' : '.';
    }
    drawn += '\n';
  }
  return drawn;
}

TEST(Tasks, SftDocumentsArePromptAndOutput) {
  const Documents made = documents_of(Task::sft, one_output(2));
  ASSERT_EQ(made.documents.size(), 2U);
  EXPECT_EQ(made.documents[1].tokens(), 22);
}

TEST(Tasks, APromptColumnAloneIsAListOfDocuments) {
  const Documents made = documents_of(Task::document, {.columns = {"tokens"}, .values = {5, 6}});
  ASSERT_EQ(made.documents.size(), 2U);
  EXPECT_EQ(made.documents[1].tokens(), 6);
}

TEST(Tasks, DpoJoinsTheOutputsOfTwoRowsUnderTheFirstPrompt) {
  const Documents made = documents_of(Task::dpo, one_output(5));
  ASSERT_EQ(made.documents.size(), 2U);
  EXPECT_EQ(made.documents[1].prompt, 30);
  EXPECT_EQ(made.documents[1].answers, (Answers{3, 4}));
  EXPECT_EQ(made.rows_left_over, 1);
}

TEST(Tasks, DpoTakesBothAnswersOfARow) {
  const Documents made = documents_of(Task::dpo, {.columns = {"p", "a", "b"}, .values = {1, 2, 3, 4, 5, 6}});
  ASSERT_EQ(made.documents.size(), 2U);
  EXPECT_EQ(made.documents[1].prompt, 4);
  EXPECT_EQ(made.documents[1].answers, (Answers{5, 6}));
}

TEST(Tasks, RmJoinsUpToSixRows) {
  const Documents made = documents_of(Task::rm, one_output(8));
  ASSERT_EQ(made.documents.size(), 2U);
  EXPECT_EQ(made.documents[0].answers.size(), 6U);
  EXPECT_EQ(made.documents[1].answers, (Answers{7, 8}));
  EXPECT_EQ(documents_of(Task::rm, one_output(7)).rows_left_over, 1);  // one answer is no comparison
}

bool accepts(Task task, const LengthTable& table) {
  try {
    documents_of(task, table);
  } catch (const Error&) {
    return false;
  }
  return true;
}

TEST(Tasks, RefuseOutputsTheyCannotUse) {
  const LengthTable two{.columns = {"p", "a", "b"}, .values = {1, 2, 3}};
  const LengthTable none{.columns = {"p"}, .values = {1}};
  EXPECT_FALSE(accepts(Task::sft, two));
  EXPECT_FALSE(accepts(Task::prefix, two));
  EXPECT_FALSE(accepts(Task::prefix, none));
  EXPECT_FALSE(accepts(Task::dpo, none));
  EXPECT_TRUE(accepts(Task::rm, two));
}

TEST(Tasks, BuildTheMaskOfTheTask) {
  const Document document{.prompt = 2, .answers = {1}};
  EXPECT_EQ(picture(mask_of_one(Task::sft, document, 4)), "#...\n##..\n###.\n....\n");
  EXPECT_EQ(picture(mask_of_one(Task::document, document, 4)), "###.\n###.\n###.\n....\n");
  EXPECT_EQ(picture(mask_of_one(Task::prefix, document, 4)), "##..\n##..\n###.\n....\n");
}

TEST(Tasks, BuildTheMaskOfSharedPrompts) {
  const Document pair{.prompt = 1, .answers = {1, 2}};
  EXPECT_EQ(picture(mask_of_one(Task::dpo, pair, 4)), "#...\n##..\n#.#.\n#.##\n");
  EXPECT_EQ(picture(mask_of_one(Task::rm, pair, 4)), "#...\n##..\n#.#.\n#.##\n");
}

TEST(Tasks, HaveTheNamesOfTheCommandLine) {
  for (const std::string& name : kTaskNames) EXPECT_EQ(to_string(parse_task(name)), name);
}

TEST(Tasks, HaveNoOtherNames) { EXPECT_THROW(parse_task("grpo"), Error); }

}  // namespace
}  // namespace flashmask::cli
