#include "corpus/corpus.h"

#include <algorithm>
#include <set>

#include "mask/visibility.h"

namespace flashmask {
namespace {

TEST(Corpus, BuildsEveryEntryAtEverySizeItAccepts) {
  for (const corpus::Entry& entry : corpus::entries()) {
    for (const corpus::Size& awkward : corpus::awkward_sizes()) {
      const corpus::Size size{awkward.rows, awkward.columns, 3};
      if (!entry.accepts(size)) continue;
      const MaskShape shape = entry.build(size).shape();
      EXPECT_EQ(shape.rows, size.rows) << entry.name;
      EXPECT_EQ(shape.columns, size.columns) << entry.name;
      EXPECT_EQ(shape.batch, 1) << entry.name;
      EXPECT_TRUE(shape.heads == 1 || shape.heads == 3) << entry.name;
    }
  }
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

TEST(Corpus, HasPerHeadMasksEmptyRowsAndAMaskThatHidesEverything) {
  bool per_head = false;
  bool everything_hidden = false;
  std::int64_t with_some_empty_rows = 0;
  for (const corpus::Entry& entry : corpus::entries()) {
    const Mask mask = entry.build({.rows = 64, .columns = 64, .heads = 2});
    const std::vector<std::uint8_t> scores = expand(mask);
    per_head |= mask.shape().heads == 2;
    std::int64_t empty_rows = 0;
    for (std::int64_t row = 0; row < 64; ++row) {
      empty_rows += std::none_of(scores.begin() + row * 64, scores.begin() + (row + 1) * 64, [](auto s) { return s; });
    }
    everything_hidden |= empty_rows == 64;
    with_some_empty_rows += empty_rows > 0 && empty_rows < 64;
  }
  EXPECT_TRUE(per_head);
  EXPECT_TRUE(everything_hidden);
  EXPECT_GT(with_some_empty_rows, 5);
}

}  // namespace
}  // namespace flashmask
