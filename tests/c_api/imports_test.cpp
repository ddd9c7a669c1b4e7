// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <vector>

#include "c_api/convert.h"
#include "c_api/handles.h"
#include "flashmask/dropout.h"

namespace flashmask::c_api {
namespace {

constexpr flashmask_mask_shape kShape{1, 2, 3, 10};

int every_third(void* context, std::int64_t, std::int64_t head, std::int64_t row, std::int64_t column) {
  return (head + row + column) % 3 == *static_cast<int*>(context) ? 1 : 0;
}

std::vector<std::uint8_t> scores_of(const MaskHandle& mask) {
  std::vector<std::uint8_t> scores(60, 2);
  EXPECT_EQ(flashmask_mask_expand(mask.get(), scores.data(), 60), FLASHMASK_OK) << flashmask_last_error();
  return scores;
}

std::vector<std::uint8_t> expected_scores() {
  std::vector<std::uint8_t> scores;
  for (int head = 0; head < 2; ++head) {
    for (int row = 0; row < 3; ++row) {
      for (int column = 0; column < 10; ++column) scores.push_back((head + row + column) % 3 == 1);
    }
  }
  return scores;
}

TEST(MaskImports, OfOneMaskAgree) {
  int wanted = 1;
  const std::vector<std::uint8_t> expected = expected_scores();
  EXPECT_EQ(scores_of(make(flashmask_mask_from_predicate, &kShape, &every_third, static_cast<void*>(&wanted))),
            expected);
  std::vector<std::int16_t> wide(120);
  std::vector<std::uint8_t> packed(12);
  for (std::size_t i = 0; i < 60; ++i) {
    wide[2 * i] = expected[i];
    packed[i / 10 * 2 + i % 10 / 8] |= static_cast<std::uint8_t>(expected[i] << i % 10 % 8);
  }
  const std::vector<std::int64_t> strides = {120, 60, 20, 2};
  EXPECT_EQ(scores_of(make(flashmask_mask_from_strided, &kShape, static_cast<const void*>(wide.data()),
                           std::int32_t{FLASHMASK_DENSE_I16}, strides.data())),
            expected);
  EXPECT_EQ(scores_of(make(flashmask_mask_from_packed, &kShape, packed.data())), expected);
}

TEST(MaskImports, TakePairsAndCompressedRows) {
  const std::vector<flashmask_visible_pair> pairs = {{1, 2}, {0, 0}, {1, 0}};
  const std::vector<std::int64_t> offsets = {0, 1, 3}, columns = {0, 2, 0};
  const MaskHandle from_pairs = make(flashmask_mask_from_pairs, 2, 3, pairs.data(), 3);
  EXPECT_EQ(expand(from_pairs->mask), (std::vector<std::uint8_t>{1, 0, 0, 1, 0, 1}));
  EXPECT_EQ(expand(make(flashmask_mask_from_csr, 2, 3, offsets.data(), columns.data(), 3)->mask),
            expand(from_pairs->mask));
  EXPECT_EQ(expand(make(flashmask_mask_not, from_pairs.get())->mask), (std::vector<std::uint8_t>{0, 1, 1, 0, 1, 0}));
}

TEST(MaskImports, SayTheFormAndWhy) {
  int wanted = 1;
  const flashmask_mask_shape tall{1, 1, 20, 2};
  const MaskHandle mask = make(flashmask_mask_from_predicate, &tall, &every_third, static_cast<void*>(&wanted));
  std::int32_t form = -1;
  const char* why = nullptr;
  ASSERT_EQ(flashmask_mask_get_form(mask.get(), &form, &why), FLASHMASK_OK);
  EXPECT_EQ(form, FLASHMASK_BITS);
  EXPECT_NE(std::string(why).find("column 0"), std::string::npos) << why;
}

TEST(MaskImports, RefuseWhatTheyCannotRead) {
  flashmask_mask* mask = nullptr;
  const std::vector<std::int64_t> strides = {0, 0, 0, 0};
  const std::int8_t two = 2;
  expect_refused(flashmask_mask_from_strided(&kShape, &two, 9, strides.data(), &mask), FLASHMASK_INVALID_ARGUMENT,
                 "dense_type is 9");
  expect_refused(flashmask_mask_from_strided(&kShape, &two, FLASHMASK_DENSE_I8, strides.data(), &mask),
                 FLASHMASK_INVALID_ARGUMENT, "is 2; give 0 (masked) or 1 (visible)");
  expect_refused(flashmask_mask_from_predicate(&kShape, nullptr, nullptr, &mask), FLASHMASK_INVALID_ARGUMENT,
                 "predicate is NULL");
  expect_refused(flashmask_mask_from_packed(&kShape, nullptr, &mask), FLASHMASK_INVALID_ARGUMENT, "bits");
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const flashmask_mask_shape wide = {1, 1, 0, kMost};
  expect_refused(flashmask_mask_from_packed(&wide, nullptr, &mask), FLASHMASK_INVALID_ARGUMENT,
                 "shape.columns is 9,223");
  expect_refused(flashmask_mask_from_csr(kMost, 1, strides.data(), nullptr, 0, &mask), FLASHMASK_INVALID_ARGUMENT,
                 "rows is 9,223");
  EXPECT_EQ(mask, nullptr);
}

TEST(DropoutExpand, GivesTheKeptProbabilities) {
  flashmask_problem problem = FLASHMASK_INIT(flashmask_problem);
  problem.batch = problem.kv_heads = 1;
  problem.query_heads = 2;
  problem.query_length = 5;
  problem.key_length = 7;
  problem.head_dim = problem.value_dim = 8;
  problem.dropout = 0.5;
  std::vector<std::uint8_t> kept(70);
  ASSERT_EQ(flashmask_dropout_expand(&problem, 3, 4, kept.data(), 70), FLASHMASK_OK) << flashmask_last_error();
  EXPECT_EQ(kept, expand_dropout(to_problem(&problem), {3, 4}));
  expect_refused(flashmask_dropout_expand(&problem, 3, 4, kept.data(), 69), FLASHMASK_INVALID_ARGUMENT, "at least 70");
}

TEST(DropoutPlacePack, GivesWhatCallsTake) {
  flashmask_problem problem = FLASHMASK_INIT(flashmask_problem);
  problem.batch = 1;
  problem.query_length = 20;
  problem.key_length = 9;
  problem.query_heads = problem.kv_heads = 2;
  problem.head_dim = problem.value_dim = 4;
  const std::vector<std::int32_t> rows = {3, 4, 9};
  const DropoutPlace place{.first_head = 4, .heads = 6, .row_eights = rows, .column_eights = {}};
  const std::vector<std::int32_t> expected = pack(place, to_problem(&problem));
  std::int64_t size = 0;
  const auto packed = [&](std::int64_t first_head, std::int32_t* to, std::int64_t capacity) {
    return flashmask_dropout_place_pack(&problem, first_head, 6, rows.data(), nullptr, to, capacity, &size);
  };
  ASSERT_EQ(packed(4, nullptr, 0), FLASHMASK_OK) << flashmask_last_error();
  std::vector<std::int32_t> found(static_cast<std::size_t>(size));
  ASSERT_EQ(packed(4, found.data(), size), FLASHMASK_OK) << flashmask_last_error();
  EXPECT_EQ(found, expected);
  expect_refused(packed(4, found.data(), size - 1), FLASHMASK_INVALID_ARGUMENT, "packed has a capacity of");
  expect_refused(packed(5, found.data(), size), FLASHMASK_INVALID_ARGUMENT, "heads from 5 on of 6");
  expect_refused(packed(std::numeric_limits<std::int64_t>::max(), found.data(), size), FLASHMASK_INVALID_ARGUMENT,
                 "on of 6");
  problem.query_length = -1;
  expect_refused(packed(4, found.data(), size), FLASHMASK_INVALID_ARGUMENT, "query_length");
}

}  // namespace
}  // namespace flashmask::c_api
