// SPDX-License-Identifier: Apache-2.0
#include "cli/base/quantities.h"

#include <gtest/gtest.h>

#include "cli/base/table.h"

namespace flashmask::cli {
namespace {

TEST(Quantities, GroupDigitsByThree) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(-1234567), "-1,234,567");
}

TEST(Quantities, HaveThreeSignificantDigits) {
  EXPECT_EQ(significant(0), "0");
  EXPECT_EQ(significant(1.234), "1.23");
  EXPECT_EQ(significant(9.996), "10.0");
  EXPECT_EQ(significant(99.96), "100");
  EXPECT_EQ(significant(12345), "12345");
  EXPECT_EQ(significant(0.01049), "0.0105");
  EXPECT_EQ(significant(0.9996), "1.00");
  EXPECT_EQ(significant(1.26e-6), "1.26e-06");
}

TEST(Quantities, ChooseTheUnit) {
  EXPECT_EQ(seconds(0.0000412), "41.2 µs");
  EXPECT_EQ(seconds(0.00231), "2.31 ms");
  EXPECT_EQ(seconds(0.99996), "1.00 s");
  EXPECT_EQ(bytes(12), "12 bytes");
  EXPECT_EQ(bytes(268435456), "268 MB");
  EXPECT_EQ(percent(0.0042), "0.420 %");
}

TEST(Table, AlignsColumnsByWhatATerminalShows) {
  Table table({Table::Align::left, Table::Align::right});
  table.add({"µs", "1"});
  table.add({"long", "22"});
  table.add({"x"});
  EXPECT_EQ(table.text(), "µs     1\nlong  22\nx\n");
}

}  // namespace
}  // namespace flashmask::cli
