// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "c_api/handles.h"
#include "source_folder.h"

namespace flashmask::c_api {
namespace {

struct Field {
  std::string name;
  std::size_t offset = 0;
  std::size_t size = 0;

  bool operator==(const Field&) const = default;
};

struct Layout {
  std::size_t size = 0;
  std::vector<Field> fields;

  bool has_size() const { return fields.at(0) == Field{"struct_size", 0, 8}; }
};

using Layouts = std::map<std::string, Layout>;

void PrintTo(const Field& field, std::ostream* out) {
  *out << field.name << " of " << field.size << " bytes at " << field.offset;
}

Layouts parse(std::istream& text) {
  Layouts layouts;
  for (std::string line; std::getline(text, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    Layout& layout = layouts[name];
    words >> layout.size;
    for (std::string field; words >> field;) {
      const std::size_t first = field.find(':'), second = field.find(':', first + 1);
      layout.fields.push_back({field.substr(0, first), std::stoul(field.substr(first + 1, second - first - 1)),
                               std::stoul(field.substr(second + 1))});
    }
  }
  return layouts;
}

Layouts of_library() {
  const char* text = nullptr;
  EXPECT_EQ(flashmask_struct_layouts(&text), FLASHMASK_OK);
  std::istringstream stream(text);
  return parse(stream);
}

Layouts of_0_1() {
  std::ifstream file(test::source_folder() + "/tests/c_api/headers/0.1/struct_layouts.txt");
  return parse(file);
}

TEST(StructLayouts, AreThoseOfTheHeader) {
  const Layouts layouts = of_library();
  const Layout& problem = layouts.at("flashmask_problem");
  EXPECT_EQ(problem.size, sizeof(flashmask_problem));
  EXPECT_EQ(problem.fields.at(1), (Field{"batch", offsetof(flashmask_problem, batch), 8}));
  EXPECT_EQ(problem.fields.at(12), (Field{"dropout", offsetof(flashmask_problem, dropout), sizeof(double)}));
  expect_refused(flashmask_struct_layouts(nullptr), FLASHMASK_INVALID_ARGUMENT, "text is NULL");
}

// A program that was compiled against 0.1 finds every field where it was. New fields come at the end of structs that
// say their size, and nowhere else.
TEST(StructLayouts, BeginAsIn01) {
  const Layouts before = of_0_1(), now = of_library();
  ASSERT_EQ(before.size(), 24U);
  for (const auto& [name, old] : before) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(now.contains(name));
    const Layout& today = now.at(name);
    ASSERT_GE(today.fields.size(), old.fields.size());
    for (std::size_t i = 0; i < old.fields.size(); ++i) EXPECT_EQ(today.fields[i], old.fields[i]);
    if (old.has_size()) {
      EXPECT_GE(today.size, old.size);
    } else {
      EXPECT_EQ(today.size, old.size);
    }
  }
}

// Nobody sets padding, but a size counts it: a new field could lie where older callers have padding at the end, and
// padding among new fields would look to an older library as fields that it does not know.
TEST(StructLayouts, HaveNoPadding) {
  for (const auto& [name, layout] : of_library()) {
    std::size_t end = 0;
    for (const Field& field : layout.fields) {
      EXPECT_EQ(field.offset, end) << name << "." << field.name;
      end = field.offset + field.size;
    }
    EXPECT_EQ(end, layout.size) << name;
  }
}

TEST(StructLayouts, BeginWithTheSizeInAllButSeven) {
  std::vector<std::string> without;
  for (const auto& [name, layout] : of_library())
    if (!layout.has_size()) without.push_back(name);
  EXPECT_EQ(without, (std::vector<std::string>{"flashmask_condition", "flashmask_hashed_token", "flashmask_mask_shape",
                                               "flashmask_span", "flashmask_tensor", "flashmask_token_numbers",
                                               "flashmask_visible_pair"}));
}

}  // namespace
}  // namespace flashmask::c_api
