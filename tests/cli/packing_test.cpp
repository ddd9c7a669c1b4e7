// SPDX-License-Identifier: Apache-2.0
#include "cli/masks/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "cli/files/csv_lengths.h"
#include "kit/random_numbers.h"
#include "source_folder.h"

namespace flashmask::cli {
namespace {

using Lengths = std::vector<std::int64_t>;
using Indices = std::vector<std::size_t>;

std::int64_t tokens_of(const Packed& packed) {
  std::int64_t tokens = 0;
  for (const PackedSequence& sequence : packed.sequences) tokens += sequence.tokens;
  return tokens;
}

Lengths random_lengths(std::uint64_t seed) {
  check::RandomNumbers random(seed);
  Lengths lengths(static_cast<std::size_t>(random.below(200)));
  for (std::int64_t& length : lengths) length = random.below(120);
  return lengths;
}

Lengths shipped_lengths() {
  const LengthTable table =
      read_lengths(test::source_folder() + "/data/alpaca_lengths.csv", {"gpt2_prompt", "gpt2_out"});
  Lengths lengths;
  for (std::int64_t row = 0; row < table.rows(); ++row) lengths.push_back(table.at(row, 0) + table.at(row, 1));
  return lengths;
}

TEST(Packing, InOrderClosesASequenceAtTheFirstThatDoesNotFit) {
  const Packed packed = pack(Lengths{4, 3, 5, 1, 2}, 8, 9, Packing::order);
  ASSERT_EQ(packed.sequences.size(), 2U);
  EXPECT_EQ(packed.sequences[0].documents, (Indices{0, 1}));  // 5 does not fit, and 1 does not jump the queue
  EXPECT_EQ(packed.sequences[1].documents, (Indices{2, 3, 4}));
}

TEST(Packing, InOrderStopsWhenTheSequencesAreFull) {
  const Packed packed = pack(Lengths{4, 3, 5, 1, 2}, 8, 1, Packing::order);
  ASSERT_EQ(packed.sequences.size(), 1U);
  EXPECT_EQ(packed.sequences[0].tokens, 7);
}

TEST(Packing, BestFitTakesTheFullestSequenceThatHasRoom) {
  // 6 and 5 open sequences; 3 fits the second only; 2 fits the first only; nothing has room for 4.
  const Packed packed = pack(Lengths{3, 5, 6, 2, 4}, 8, 2, Packing::best_fit);
  ASSERT_EQ(packed.sequences.size(), 2U);
  EXPECT_EQ(packed.sequences[0].documents, (Indices{2, 3}));
  EXPECT_EQ(packed.sequences[1].documents, (Indices{1, 0}));
}

TEST(Packing, SkipsAndCountsWhatIsLongerThanASequence) {
  for (const Packing packing : {Packing::order, Packing::best_fit}) {
    const Packed packed = pack(Lengths{9, 4, 20, 8}, 8, 2, packing);
    EXPECT_EQ(packed.too_long, 2);
    EXPECT_EQ(tokens_of(packed), 12);
  }
}

TEST(Packing, OfNothingIsOneEmptySequence) {
  for (const Packing packing : {Packing::order, Packing::best_fit}) {
    const Packed packed = pack(Lengths{}, 8, 3, packing);
    ASSERT_EQ(packed.sequences.size(), 1U);
    EXPECT_TRUE(packed.sequences[0].documents.empty());
  }
}

/// Every sequence holds what it says, no more than it may, and no document twice.
void expect_sound(const Packed& packed, const Lengths& lengths, std::int64_t seqlen) {
  std::set<std::size_t> used;
  for (const PackedSequence& sequence : packed.sequences) {
    std::int64_t tokens = 0;
    for (const std::size_t document : sequence.documents) {
      EXPECT_TRUE(used.insert(document).second) << "document " << document << " twice";
      tokens += lengths[document];
    }
    EXPECT_EQ(sequence.tokens, tokens);
    EXPECT_LE(tokens, seqlen);
  }
}

TEST(Packing, KeepsDocumentsWholeAndUsesEachOnce) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Lengths lengths = random_lengths(seed);
    for (const Packing packing : {Packing::order, Packing::best_fit}) {
      const Packed packed = pack(lengths, 100, 5, packing);
      EXPECT_LE(packed.sequences.size(), 5U);
      expect_sound(packed, lengths, 100);
    }
  }
}

TEST(Packing, InOrderKeepsTheOrder) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Indices all;
    for (const PackedSequence& sequence : pack(random_lengths(seed), 100, 7, Packing::order).sequences) {
      all.insert(all.end(), sequence.documents.begin(), sequence.documents.end());
    }
    EXPECT_TRUE(std::is_sorted(all.begin(), all.end()));
  }
}

TEST(Packing, BestFitLeavesOutOnlyWhatFindsNoRoom) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const Lengths lengths = random_lengths(seed);
    const Packed packed = pack(lengths, 100, 3, Packing::best_fit);
    std::set<std::size_t> used;
    std::int64_t most_room = packed.sequences.size() < 3 ? 100 : 0;
    for (const PackedSequence& sequence : packed.sequences) {
      used.insert(sequence.documents.begin(), sequence.documents.end());
      most_room = std::max(most_room, 100 - sequence.tokens);
    }
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      EXPECT_TRUE(used.contains(i) || lengths[i] > most_room) << i;
    }
  }
}

TEST(Packing, BestFitPacksTheShippedLengthsAtLeastAsTightly) {
  const Lengths lengths = shipped_lengths();
  ASSERT_EQ(lengths.size(), 52002U);
  for (const std::int64_t seqlen : {512, 4096, 16384}) {
    for (const std::int64_t sequences : {1, 4, 32}) {
      EXPECT_GE(tokens_of(pack(lengths, seqlen, sequences, Packing::best_fit)),
                tokens_of(pack(lengths, seqlen, sequences, Packing::order)));
    }
  }
}

TEST(Packing, BestFitKeepsEqualLengthsInOrder) {
  EXPECT_EQ(pack(Lengths{2, 2, 2, 2}, 8, 1, Packing::best_fit).sequences[0].documents, (Indices{0, 1, 2, 3}));
}

}  // namespace
}  // namespace flashmask::cli
