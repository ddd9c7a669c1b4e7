// SPDX-License-Identifier: Apache-2.0
#include "cli/files/csv_lengths.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>

#include "flashmask/error.h"

namespace flashmask::cli {
namespace {

using Values = std::vector<std::int64_t>;

LengthTable parse(std::string_view text, const std::vector<std::string>& columns = {"prompt", "out"}) {
  return parse_lengths(text, columns, "lengths.csv");
}

/// The message with which a text is refused; empty when it is read.
std::string refusal(std::string_view text, const std::vector<std::string>& columns = {"prompt", "out"}) {
  try {
    parse(text, columns);
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::invalid_argument);
    return error.what();
  }
  return "";
}

TEST(CsvLengths, ReadsColumnsByNameInTheOrderAsked) {
  const LengthTable table = parse("id,out,prompt\na,1,2\nb,3,4\n");
  EXPECT_EQ(table.rows(), 2);
  EXPECT_EQ(table.values, (Values{2, 1, 4, 3}));
  EXPECT_EQ(table.at(1, 0), 4);
}

TEST(CsvLengths, TakesEveryLineEnd) {
  for (const char* text : {"prompt,out\n1,2\n3,4\n", "prompt,out\r\n1,2\r\n3,4\r\n", "prompt,out\r1,2\r3,4\r",
                           "prompt,out\n1,2\n3,4", "\xEF\xBB\xBFprompt,out\n1,2\n\n3,4\n"}) {
    EXPECT_EQ(parse(text).values, (Values{1, 2, 3, 4})) << text;
  }
}

TEST(CsvLengths, TakesQuotedFields) {
  const LengthTable table = parse("\"prompt\",note,out\n\"7\",\"a, \"\"b\"\"\nc\",8\n");
  EXPECT_EQ(table.values, (Values{7, 8}));
}

TEST(CsvLengths, LeavesOtherColumnsAlone) { EXPECT_EQ(parse("prompt,text,out\n1,-x-,2\n").values, (Values{1, 2})); }

TEST(CsvLengths, ReadsAHeaderWithoutRows) { EXPECT_EQ(parse("prompt,out\n").rows(), 0); }

TEST(CsvLengths, NamesTheLineOfABadNumber) {
  EXPECT_EQ(refusal("prompt,out\n1,2\n\n3,x\n"),
            "lengths.csv, line 4: out is \"x\"; expected a whole number of tokens, 0 to 2147483647");
  for (const char* field : {"-1", "2147483648", "99999999999999999999", "1.5", "1e3", "", "0x10", "1 2", "+1"}) {
    EXPECT_NE(refusal("prompt,out\n1," + std::string(field) + "\n").find("lengths.csv, line 2: out is"),
              std::string::npos)
        << field;
  }
  EXPECT_EQ(parse("prompt,out\n0,2147483647\n").values, (Values{0, 2147483647}));
}

TEST(CsvLengths, CountsTheLinesInsideQuotes) {
  EXPECT_NE(refusal("prompt,note,out\r\n1,\"two\r\nlines\",2\r\n3,,bad\r\n").find("line 4: out"), std::string::npos);
}

TEST(CsvLengths, NamesTheLineWhereARecordOfManyLinesBegins) {
  EXPECT_NE(refusal("prompt,note,out\n1,\"two\n\nlines\",bad\n").find("line 2: out"), std::string::npos);
}

TEST(CsvLengths, RefusesAWrongNumberOfFields) {
  EXPECT_EQ(refusal("prompt,out\n1,2\n3\n"), "lengths.csv, line 3: 1 fields, but the header names 2 columns");
  EXPECT_NE(refusal("prompt,out\n1,2,3\n").find("line 2: 3 fields"), std::string::npos);
}

TEST(CsvLengths, RefusesBrokenQuotes) {
  EXPECT_NE(refusal("prompt,out\n1,2\n3,4\"5\n").find("line 3: a quote inside a field"), std::string::npos);
  EXPECT_NE(refusal("prompt,out\n1,2\n3,\"4\n5,6\n").find("line 3: a quoted field"), std::string::npos);
}

TEST(CsvLengths, NamesTheColumnsThereAre) {
  EXPECT_EQ(refusal("prompt,answer\n1,2\n"),
            "lengths.csv, line 1: no column \"out\"; the columns are \"prompt\", \"answer\"; name yours with --prompt "
            "and --outputs");
  EXPECT_NE(refusal("prompt,out,out\n1,2,3\n").find("two columns are named \"out\""), std::string::npos);
}

TEST(CsvLengths, RefusesAnEmptyText) {
  for (const char* text : {"", "\n\n", "\r\n"}) EXPECT_NE(refusal(text).find("lengths.csv: empty"), std::string::npos);
}

TEST(CsvLengths, ShowsABinaryFileSafely) {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) {
    if (byte != '\n' && byte != '\r' && byte != '"') bytes += static_cast<char>(byte);
  }
  std::string columns;
  for (int column = 0; column < 1000; ++column) columns += ",x" + bytes;
  std::string message = refusal(bytes + columns + "\n");
  const std::string cut = "…";
  while (message.find(cut) != std::string::npos) message.erase(message.find(cut), cut.size());
  EXPECT_TRUE(std::all_of(message.begin(), message.end(), [](char c) { return c >= ' ' && c <= '~'; })) << message;
  EXPECT_NE(message.find("\\x00\\x01"), std::string::npos) << message;
  EXPECT_NE(message.find(" more; name yours"), std::string::npos) << message;
  EXPECT_LT(message.size(), 2500U);
}

TEST(CsvLengths, ShowsNamesInAnyScript) {
  EXPECT_NE(refusal("提示,réponse\n1,2\n").find("the columns are \"提示\", \"réponse\""), std::string::npos);
}

TEST(CsvLengths, ShowsStrangeFieldsSafely) {
  const std::string message = refusal("prompt,out\n1,\x1b[31m" + std::string(1000, 'x') + "\n");
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
  EXPECT_LT(message.size(), 200U);
}

TEST(CsvLengths, ReadsFiles) {
  const std::string path = testing::TempDir() + "lengths.csv";
  std::ofstream(path) << "prompt,out\n5,6\n";
  EXPECT_EQ(read_lengths(path, {"out"}).values, (Values{6}));
  std::ofstream(path, std::ios::trunc).close();
  EXPECT_THROW(read_lengths(path, {"out"}), Error);
  std::remove(path.c_str());
}

TEST(CsvLengths, RefusesWhatIsNoFile) {
  for (const std::string& path : {testing::TempDir() + "missing.csv", testing::TempDir()}) {
    try {
      read_lengths(path, {"out"});
      ADD_FAILURE() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::io);
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace flashmask::cli
