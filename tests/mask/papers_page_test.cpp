// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "source_folder.h"

namespace flashmask {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = test::source_folder();

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// What docs/papers.md sets in code font.
std::vector<std::string> quoted() {
  const std::string page = text_of(kSource / "docs/papers.md");
  const std::regex code("`([^`\n]+)`");
  std::vector<std::string> all;
  for (std::sregex_iterator match(page.begin(), page.end(), code), end; match != end; ++match) {
    all.push_back((*match)[1]);
  }
  return all;
}

TEST(PapersPage, NamesFilesThatExist) {
  int files = 0;
  for (const std::string& name : quoted()) {
    if (!std::regex_match(name, std::regex("(include|src|tests|cli)/[a-z0-9_/.]+"))) continue;
    EXPECT_TRUE(fs::is_regular_file(kSource / name)) << name;
    ++files;
  }
  EXPECT_GT(files, 8);
}

TEST(PapersPage, NamesWordsThatTheCodeHas) {
  std::set<std::string> words;
  const std::regex word("[A-Za-z_][A-Za-z0-9_]*");
  for (const char* folder : {"include", "src", "cli"}) {
    for (const auto& entry : fs::recursive_directory_iterator(kSource / folder)) {
      if (!entry.is_regular_file()) continue;
      const std::string text = text_of(entry.path());
      for (std::sregex_iterator match(text.begin(), text.end(), word), end; match != end; ++match) {
        words.insert(match->str());
      }
    }
  }
  int names = 0;
  for (const std::string& name : quoted()) {
    // A name, perhaps qualified: Plan::mask(), .offset, TileKind::skip.
    std::smatch parts;
    if (!std::regex_match(name, parts, std::regex("(?:\\w+(?:::|\\.))*\\.?(\\w+)(?:\\(.*\\))?(?:\\.\\w+)?"))) continue;
    EXPECT_TRUE(words.contains(parts[1])) << name;
    ++names;
  }
  EXPECT_GT(names, 60);
}

}  // namespace
}  // namespace flashmask
