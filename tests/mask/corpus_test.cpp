// SPDX-License-Identifier: Apache-2.0
#include "kit/corpus.h"

#include <algorithm>
#include <set>

#include "mask/visibility.h"

namespace flashmask {
namespace {

TEST(Corpus, BuildsEveryEntryAtEverySizeItAccepts) {
  for (const corpus::Case& one : corpus::cases(3)) {
    const MaskShape shape = one.mask().shape();
    EXPECT_EQ(shape.rows, one.size.rows) << one.name();
    EXPECT_EQ(shape.columns, one.size.columns) << one.name();
    EXPECT_EQ(shape.batch, 1) << one.name();
    EXPECT_TRUE(shape.heads == 1 || shape.heads == 3) << one.name();
  }
}

TEST(Corpus, HasACaseOfEveryEntry) {
  std::set<std::string> names;
  for (const corpus::Case& one : corpus::cases(1)) names.insert(one.entry->name);
  EXPECT_EQ(names.size(), corpus::entries().size());
}

TEST(Corpus, BuildsTheSameMaskEveryTime) {
  for (const corpus::Entry& entry : corpus::entries()) {
    const corpus::Size size{.rows = 64, .columns = 64, .heads = 2};
    EXPECT_EQ(expand(entry.build(size)), expand(entry.build(size))) << entry.name;
  }
}

TEST(Corpus, HoldsNoMaskTwice) {
  std::set<std::string> names;
  std::set<std::string> masks;
  for (const corpus::Entry& entry : corpus::entries()) {
    names.insert(entry.name);
    const std::vector<std::uint8_t> scores = expand(entry.build({.rows = 130, .columns = 130, .heads = 2}));
    masks.insert(std::string(scores.begin(), scores.end()));
  }
  EXPECT_EQ(names.size(), corpus::entries().size());
  EXPECT_EQ(masks.size(), corpus::entries().size());
}

std::int64_t empty_rows_of_first_head(const Mask& mask) {
  const std::int64_t columns = mask.shape().columns;
  const std::vector<std::uint8_t> scores = expand(mask);
  std::int64_t count = 0;
  for (auto row = scores.begin(); row != scores.begin() + mask.shape().rows * columns; row += columns) {
    count += std::none_of(row, row + columns, [](std::uint8_t score) { return score != 0; });
  }
  return count;
}

TEST(Corpus, HasPerHeadMasksEmptyRowsAndAMaskThatHidesEverything) {
  bool per_head = false;
  bool everything_hidden = false;
  std::int64_t with_some_empty_rows = 0;
  for (const corpus::Entry& entry : corpus::entries()) {
    const Mask mask = entry.build({.rows = 64, .columns = 64, .heads = 2});
    const std::int64_t empty_rows = empty_rows_of_first_head(mask);
    per_head |= mask.shape().heads == 2;
    everything_hidden |= empty_rows == 64;
    with_some_empty_rows += empty_rows > 0 && empty_rows < 64;
  }
  EXPECT_TRUE(per_head);
  EXPECT_TRUE(everything_hidden);
  EXPECT_GT(with_some_empty_rows, 5);
}

}  // namespace
}  // namespace flashmask
