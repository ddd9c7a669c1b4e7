// SPDX-License-Identifier: Apache-2.0
#include "cli/files/output_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "flashmask/error.h"

namespace flashmask::cli {
namespace {

namespace fs = std::filesystem;

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A folder of its own for each test.
class OutputFileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
    fs::create_directory(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path folder_;
};

TEST_F(OutputFileTest, AppearsWholeWhenCommitted) {
  const fs::path path = folder_ / "picture";
  OutputFile file(path.string());
  EXPECT_FALSE(fs::exists(path));
  file.commit(std::string("a\0b", 3));
  EXPECT_EQ(contents(path), std::string("a\0b", 3));
}

TEST_F(OutputFileTest, LeavesNothingWhenNotCommitted) {
  { const OutputFile file((folder_ / "picture").string()); }
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(OutputFileTest, ReplacesOnlyWhenCommitted) {
  const fs::path path = folder_ / "picture";
  std::ofstream(path) << "old";
  OutputFile file(path.string());
  EXPECT_EQ(contents(path), "old");
  file.commit("new");
  EXPECT_EQ(contents(path), "new");
}

TEST_F(OutputFileTest, RefusesFoldersAndDevicesAndMissingFolders) {
  for (const fs::path& path : {folder_, fs::path("/dev/null"), folder_ / "missing" / "picture"}) {
    try {
      const OutputFile file(path.string());
      ADD_FAILURE() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::io);
      EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos);
    }
  }
  EXPECT_TRUE(fs::is_empty(folder_));
}

}  // namespace
}  // namespace flashmask::cli
