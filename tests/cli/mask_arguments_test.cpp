// SPDX-License-Identifier: Apache-2.0
#include "cli/masks/mask_arguments.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "cli/base/names.h"
#include "flashmask/draw.h"
#include "flashmask/error.h"

namespace flashmask::cli {
namespace {

std::string refusal(const std::string& family, const MaskArguments& arguments) {
  try {
    build_mask(family, arguments);
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::invalid_argument);
    return error.what();
  }
  return "";
}

MaskArguments of_tokens(std::int64_t tokens) {
  MaskArguments arguments;
  arguments.tokens = tokens;
  return arguments;
}

TEST(MaskArguments, EveryFamilyBuildsFromItsSizeAlone) {
  for (const MaskFamily& family : mask_families()) {
    for (const std::int64_t tokens : {2, 10, 32, 100, 1000}) {
      const Mask mask = build_mask(family.name, of_tokens(tokens));
      EXPECT_EQ(mask.shape().rows, tokens) << family.name;
      EXPECT_EQ(mask.shape().columns, tokens) << family.name;
    }
    EXPECT_EQ(build_mask(family.name, {}).shape().rows, 32) << family.name;
  }
}

/// For 20 tokens, and different from every default.
const std::map<std::string, std::function<void(MaskArguments&)>> kUnusual = {
    {"columns", [](MaskArguments& given) { given.columns = 25; }},
    {"window", [](MaskArguments& given) { given.window = 7; }},
    {"left", [](MaskArguments& given) { given.left = 6; }},
    {"right", [](MaskArguments& given) { given.right = 6; }},
    {"globals", [](MaskArguments& given) { given.globals = 5; }},
    {"prefix", [](MaskArguments& given) { given.prefix = 3; }},
    {"block", [](MaskArguments& given) { given.block = 5; }},
    {"buckets", [](MaskArguments& given) { given.buckets = 2; }},
    {"heads", [](MaskArguments& given) { given.heads = 2; }},
    {"seed", [](MaskArguments& given) { given.seed = 9; }},
    {"documents", [](MaskArguments& given) { given.documents = "11,6"; }},
    {"prefixes", [](MaskArguments& given) { given.prefixes = "1,1,1,1,1"; }},
    {"spans", [](MaskArguments& given) { given.spans = "1:4,9:15"; }},
    {"parents", [](MaskArguments& given) { given.parents = "-1,0", given.lengths = "8,9"; }},
    {"lengths", [](MaskArguments& given) { given.parents = "-1,0", given.lengths = "9,8"; }},
    {"dilation", [](MaskArguments& given) { given.dilation = 3; }},
    {"stride", [](MaskArguments& given) { given.stride = 7; }},
    {"summary", [](MaskArguments& given) { given.summary = 2; }},
    {"window-blocks", [](MaskArguments& given) { given.window_blocks = 3; }},
    {"global-blocks", [](MaskArguments& given) { given.global_blocks = 4; }},
    {"random-blocks", [](MaskArguments& given) { given.random_blocks = 1; }},
    {"positions", [](MaskArguments& given) { given.positions = "5,13"; }},
    {"dropped", [](MaskArguments& given) { given.dropped = "0,19"; }},
    {"candidates", [](MaskArguments& given) { given.candidates = "2,4"; }},
    {"sight", [](MaskArguments& given) { given.sight = "parent"; }},
    {"edges", [](MaskArguments& given) { given.edges = "0:3,8:2"; }},
};

/// Numbers that mean something to some families only.
void adapt(const std::string& family, const std::string& option, MaskArguments& given) {
  if (family == "shared_question") given.documents = "9:4:4";
  if (family == "tree_in_order") given.lengths.reset();
  if (option == "dilation" && family == "neighbourhood_3d") given.dilation = 2;
  if (option == "grid") given.grid = family == "neighbourhood_2d" ? "2,10" : "5,2,2";
  if (option == "kernel-size") given.kernel_size = family == "neighbourhood_2d" ? "2,5" : "1,2,3";
}

bool differ(const Mask& a, const Mask& b) { return a.shape() != b.shape() || expand(a) != expand(b); }

TEST(MaskArguments, EveryOptionOfAFamilyChangesItsMask) {
  for (const MaskFamily& family : mask_families()) {
    const Mask usual = build_mask(family.name, of_tokens(20));
    for (const std::string& option : family.options) {
      MaskArguments given = of_tokens(20);
      if (kUnusual.contains(option)) kUnusual.at(option)(given);
      adapt(family.name, option, given);
      EXPECT_TRUE(differ(usual, build_mask(family.name, given))) << family.name << " --" << option;
    }
  }
}

TEST(MaskArguments, DocumentsAddUpToTheTokens) {
  MaskArguments arguments;
  arguments.documents = "4,3,3";
  EXPECT_EQ(draw(build_mask("causal_document", arguments)),
            "#.........\n##........\n###.......\n####......\n....#.....\n....##....\n....###...\n"
            ".......#..\n.......##.\n.......###\n");
}

TEST(MaskArguments, QuestionsAndSpansHaveTheirOwnForms) {
  MaskArguments questions;
  questions.documents = "1:1:2,2:1";
  EXPECT_EQ(draw(build_mask("shared_question", questions)),
            "#......\n##.....\n#.#....\n#.##...\n....#..\n....##.\n....###\n");
  MaskArguments spans = of_tokens(4);
  spans.spans = "1:3";
  EXPECT_EQ(draw(build_mask("bidirectional_spans", spans)), "#...\n###.\n###.\n####\n");
}

TEST(MaskArguments, ATreeTakesParentsAndLengthsTogether) {
  MaskArguments arguments;
  arguments.parents = "-1,0,0";
  EXPECT_NE(refusal("tree", arguments).find("--parents and --lengths go together"), std::string::npos);
  arguments.lengths = "2,1,1";
  EXPECT_EQ(draw(build_mask("tree", arguments)), "#...\n##..\n###.\n##.#\n");
}

TEST(MaskArguments, ATreeInOrderHasAsManyTokensAsParents) {
  MaskArguments arguments;
  arguments.parents = "-1,0,0,1";
  EXPECT_EQ(draw(build_mask("tree_in_order", arguments)), "#...\n##..\n#.#.\n##.#\n");
  arguments.sight = "parent";
  EXPECT_EQ(draw(build_mask("tree_in_order", arguments)), "#...\n##..\n#.#.\n.#.#\n");
  arguments.sight = "children";
  EXPECT_EQ(refusal("tree_in_order", arguments), "--sight is \"children\"; expected ancestors or parent");
}

TEST(MaskArguments, AMedusaTreeHasAsManyTokensAsItsHeadsGive) {
  MaskArguments arguments;
  arguments.candidates = "2,1";
  EXPECT_EQ(draw(build_mask("medusa_tree", arguments)), "#...\n.#..\n#.#.\n.#.#\n");
}

TEST(MaskArguments, ANeighbourhoodIsAsLongAsItsGrid) {
  MaskArguments arguments;
  arguments.grid = "2,3";
  arguments.kernel_size = "1,2";
  EXPECT_EQ(draw(build_mask("neighbourhood_2d", arguments)), "##....\n##....\n.##...\n...##.\n...##.\n....##\n");
  EXPECT_EQ(refusal("neighbourhood_3d", arguments), "--grid is \"2,3\"; expected 3 numbers, one an axis");
  arguments.tokens = 7;
  EXPECT_EQ(refusal("neighbourhood_2d", arguments),
            "--grid is \"2,3\"; expected lengths that multiply to --tokens, which is 7");
}

TEST(MaskArguments, EdgesAreSeenFromBothEnds) {
  MaskArguments arguments = of_tokens(4);
  arguments.edges = "0:3,1:2";
  EXPECT_EQ(draw(build_mask("graph", arguments)), "#..#\n.##.\n.##.\n#..#\n");
  arguments.edges = "0:3:1";
  EXPECT_NE(refusal("graph", arguments).find("pairs of nodes, such as 0:1,1:4"), std::string::npos);
}

TEST(MaskArguments, SuggestTheNearestFamily) {
  EXPECT_NE(refusal("casual", {}).find("did you mean causal?"), std::string::npos);
  EXPECT_NE(refusal("casual_documents", {}).find("did you mean causal_document?"), std::string::npos);
  const std::string message = refusal("zzzzzzzz", {});
  EXPECT_EQ(message.find("did you mean"), std::string::npos);
  for (const MaskFamily& family : mask_families()) EXPECT_NE(message.find(family.name), std::string::npos);
}

TEST(MaskArguments, RefuseOptionsThatMeanNothing) {
  MaskArguments arguments;
  arguments.window = 3;
  EXPECT_EQ(refusal("causal", arguments), "causal takes --tokens, --columns; --window means nothing to it");
}

TEST(MaskArguments, RefuseLengthsThatAreNone) {
  for (const char* text : {"-4,3", "3,-1", "9223372036854775807,9223372036854775807"}) {
    MaskArguments arguments;
    arguments.documents = text;
    for (const char* family : {"causal_document", "document", "sliding_window_document"}) {
      EXPECT_EQ(refusal(family, arguments),
                std::string("--documents is \"") + text + "\"; expected lengths from 0 to 2147483647");
    }
  }
  MaskArguments questions;
  questions.documents = "4:3:-2,6:2";
  EXPECT_EQ(refusal("shared_question", questions), "--documents is \"4:3:-2\"; expected lengths from 0 to 2147483647");
  MaskArguments tree;
  tree.parents = "-1,0";
  tree.lengths = "4,-5";
  EXPECT_EQ(refusal("tree", tree), "--lengths is \"4,-5\"; expected lengths from 0 to 2147483647");
}

TEST(MaskArguments, RefuseWhatIsNoList) {
  for (const char* text : {"", "4,", ",4", "4;3", "4,x", "4 3", "99999999999999999999"}) {
    MaskArguments arguments;
    arguments.documents = text;
    EXPECT_NE(refusal("document", arguments).find("--documents is"), std::string::npos) << text;
  }
  MaskArguments arguments;
  arguments.spans = "1:2:3";
  EXPECT_NE(refusal("bidirectional_spans", arguments).find("--spans is"), std::string::npos);
  EXPECT_NE(refusal("block_diffusion", of_tokens(7)).find("even"), std::string::npos);
}

void expect_out_of_memory(const std::string& family, const MaskArguments& arguments) {
  try {
    build_mask(family, arguments);
    ADD_FAILURE() << family;
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::out_of_memory) << error.what();
  }
}

TEST(MaskArguments, RefuseMasksThatNoMemoryHolds) {
  MaskArguments arguments = of_tokens(2147483647);
  arguments.heads = 2147483647;
  expect_out_of_memory("random_eviction", arguments);
  expect_out_of_memory("strided_factorised", of_tokens(16'777'216));
  MaskArguments grid;
  grid.grid = "4000000000,4000000000,9";
  expect_out_of_memory("neighbourhood_3d", grid);
  MaskArguments prefix;
  prefix.prefix = 9'000'000'000'000'000'000;
  expect_out_of_memory("tree_in_order", prefix);
}

TEST(Names, NearestIsByEdits) {
  const std::vector<std::string> names = {"show", "check", "partition"};
  EXPECT_EQ(nearest_name("shwo", names), "show");
  EXPECT_EQ(nearest_name("part", names), "partition");
  EXPECT_EQ(nearest_name("ch", names), "check");
  EXPECT_EQ(nearest_name("xyz", names), "");
  EXPECT_EQ(nearest_name("", names), "");
}

}  // namespace
}  // namespace flashmask::cli
