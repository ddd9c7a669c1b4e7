// SPDX-License-Identifier: Apache-2.0
#include "cli/files/npy.h"

#include <gtest/gtest.h>

#include "flashmask/error.h"
#include "npy_bytes.h"

namespace flashmask::cli {
namespace {

NpyArray describe(const std::string& file) { return describe_npy(file, file.size(), "m.npy"); }

/// What is said of a file, which begins with its name.
std::string refusal(const std::string& file) {
  try {
    describe(file);
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::invalid_argument);
    EXPECT_EQ(std::string(error.what()).rfind("m.npy: ", 0), 0U) << error.what();
    return error.what();
  }
  return "";
}

void expect_refused(const std::string& file, const std::string& part) {
  const std::string message = refusal(file);
  EXPECT_NE(message.find(part), std::string::npos) << part << " not in: " << message;
}

std::string dictionary(const std::string& descr, const std::string& fortran_order, const std::string& shape) {
  return "{'descr': " + descr + ", 'fortran_order': " + fortran_order + ", 'shape': " + shape + "}";
}

TEST(Npy, SaysWhereTheArrayLies) {
  const std::string file = npy("|b1", "(2, 3)", "\x01\x01\x01\x01\x01\x01");
  const NpyArray array = describe(file);
  EXPECT_EQ(array.type, DenseType::i8);
  EXPECT_EQ(array.dtype, "|b1");
  EXPECT_EQ(array.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(array.begin, 128U);
  EXPECT_EQ(array.bytes, 6U);
  EXPECT_EQ(array.dim(0), 3);
  EXPECT_EQ(array.dim(1), 2);
}

TEST(Npy, TakesBooleansAndLittleEndianIntegersOfEveryWidth) {
  struct Element {
    const char* descr;
    std::size_t bytes;
    DenseType type;
  };
  for (const auto& [descr, bytes, type] :
       {Element{"|b1", 1, DenseType::i8}, Element{"|i1", 1, DenseType::i8}, Element{"|u1", 1, DenseType::i8},
        Element{"<i2", 2, DenseType::i16}, Element{"<u2", 2, DenseType::i16}, Element{"<i4", 4, DenseType::i32},
        Element{"<u4", 4, DenseType::i32}, Element{"<i8", 8, DenseType::i64}, Element{"<u8", 8, DenseType::i64}}) {
    EXPECT_EQ(describe(npy(descr, "(1, 2)", std::string(2 * bytes, '\0'))).type, type) << descr;
  }
}

TEST(Npy, TakesKeysInAnyOrderAndEitherQuote) {
  const NpyArray array = describe(npy_header(R"({"shape":(1,2,),  'fortran_order': False, 'descr':"|u1"})") + "ab");
  EXPECT_EQ(array.shape, (std::vector<std::int64_t>{1, 2}));
}

TEST(Npy, TakesTheLaterFormats) {
  for (const char version : {'\x02', '\x03'}) {
    const std::string text = dictionary("'|b1'", "False", "(1, 1)") + "\n";
    const std::string file = std::string("\x93NUMPY") + version + std::string(1, '\0') +
                             static_cast<char>(text.size()) + std::string(3, '\0') + text + "x";
    EXPECT_EQ(describe(file).begin, 12 + text.size());
  }
}

TEST(Npy, RefusesWhatIsNoNpyFile) {
  expect_refused("", "no .npy file");
  expect_refused("\x93NUMP", "no .npy file");
  expect_refused("PK\x03\x04", "no .npy file");
  expect_refused(std::string("\x93NUMPY\x04\x00", 8) + std::string(100, ' '), ".npy format 4.0 is unknown");
  expect_refused(std::string("\x93NUMPY\x01\x07", 8) + std::string(100, ' '), ".npy format 1.7 is unknown");
}

TEST(Npy, RefusesEveryTruncationOfAFile) {
  const std::string file = npy("|b1", "(2, 3)", "\x01\x01\x01\x01\x01\x01");
  for (std::size_t size = 0; size < file.size(); ++size) EXPECT_NE(refusal(file.substr(0, size)), "") << size;
  expect_refused(file.substr(0, 7), "cut off inside its header");
  expect_refused(file.substr(0, 100), "cut off inside its header");
  expect_refused(file.substr(0, 130), "cut off: 2 bytes follow the header, too few for |b1 (2, 3)");
  expect_refused(file + "xx", "longer than its array |b1 (2, 3) by 2 bytes");
}

TEST(Npy, RefusesHeadersThatNumPyDoesNotWrite) {
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("}"), std::string("{}"),
        dictionary("'|b1'", "False", "(1, 1)") + "x", dictionary("'|b1'", "false", "(1, 1)"),
        dictionary("'|b1'", "False", "(1, -1)"), dictionary("'|b1'", "False", "(1, 1"),
        dictionary("'|b1'", "False", "1, 1)"), dictionary("'|b1'", "False", "(1 1)"),
        dictionary("'|b1'", "False", "(99999999999999999999, 1)"), dictionary("'|b1'", "False", "(1.0, 1)"),
        dictionary("'|b1", "False", "(1, 1)"), dictionary("b1", "False", "(1, 1)"),
        std::string("{'descr': '|b1', 'shape': (1, 1)}"),
        std::string("{'descr': '|b1', 'descr': '|b1', 'fortran_order': False, 'shape': (1, 1)}"),
        std::string("{'more': '|b1', 'descr': '|b1', 'fortran_order': False, 'shape': (1, 1)}"),
        std::string("{'descr': '|b1' 'fortran_order': False, 'shape': (1, 1)}")}) {
    EXPECT_NE(refusal(npy_header(text) + "x").find("malformed .npy header"), std::string::npos) << text;
  }
}

TEST(Npy, RefusesAHeaderThatIsLongerThanAnyHeader) {
  const std::string file = std::string("\x93NUMPY\x02\x00\xFF\xFF\xFF\xFF", 12) + std::string(200, ' ');
  expect_refused(file, "malformed .npy header");
}

TEST(Npy, RefusesOtherElementsAndSaysWhatToSave) {
  expect_refused(npy("<f4", "(1, 1)", "xxxx"), "dtype '<f4'; expected bool, or integers that are 0 or 1");
  expect_refused(npy("<f4", "(1, 1)", "xxxx"), "save array == 0");
  expect_refused(npy("|O", "(1, 1)", "x"), "Python objects");
  expect_refused(npy(">i4", "(1, 1)", "xxxx"), "big-endian integers ('>i4'); save array.astype('<i4')");
  expect_refused(npy("<c8", "(1, 1)", "xxxxxxxx"), "dtype '<c8'");
  expect_refused(npy("<M8[s]", "(1, 1)", "xxxxxxxx"), "dtype '<M8[s]'");
  expect_refused(npy("|i4", "(1, 1)", "xxxx"), "dtype '|i4'");
  expect_refused(npy("", "(1, 1)", "x"), "dtype ''");
  expect_refused(npy_header(dictionary("[('a', '<i4')]", "False", "(1, 1)")) + "xxxx", "an array of records");
}

TEST(Npy, ShowsNoControlCharactersOfAFile) {
  expect_refused(npy(std::string("\x1b[31m\0x", 7), "(1, 1)", "x"), R"(dtype '\x1b[31m\x00x')");
}

TEST(Npy, RefusesFortranOrder) {
  expect_refused(npy_header(dictionary("'|b1'", "True", "(2, 2)")) + "xxxx",
                 "Fortran order); save numpy.ascontiguousarray(array)");
}

TEST(Npy, RefusesShapesThatAreNoMask) {
  expect_refused(npy("|b1", "()", "x"), "an array of shape ()");
  expect_refused(npy("|b1", "(1,)", "x"), "an array of shape (1,); expected (rows, columns)");
  expect_refused(npy("|b1", "(1, 1, 1, 1, 1)", "x"), "an array of shape (1, 1, 1, 1, 1)");
  expect_refused(npy("|b1", "(0, 4)", ""), "an empty array of shape (0, 4)");
}

TEST(Npy, RefusesSizesWhoseProductOverflows) {
  expect_refused(npy("<i8", "(4294967296, 4294967296)", ""), "cut off: 0 bytes");
  expect_refused(npy("<i8", "(9223372036854775807, 9223372036854775807, 4, 4)", "x"), "cut off: 1 bytes");
}

}  // namespace
}  // namespace flashmask::cli
