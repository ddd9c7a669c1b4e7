#include "mask_arguments.h"

#include <gtest/gtest.h>

#include "flashmask/draw.h"
#include "flashmask/error.h"
#include "names.h"

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

TEST(MaskArguments, EveryOptionOfAFamilyChangesItsMask) {
  const MaskArguments plain = of_tokens(20);
  for (const MaskFamily& family : mask_families()) {
    for (const std::string& option : family.options) {
      MaskArguments given = plain;
      given.columns = option == "columns" ? std::optional<std::int64_t>(25) : std::nullopt;
      if (option == "window") given.window = 7;
      if (option == "left") given.left = 6;
      if (option == "right") given.right = 6;
      if (option == "globals") given.globals = 5;
      if (option == "prefix") given.prefix = 3;
      if (option == "block") given.block = 5;
      if (option == "buckets") given.buckets = 2;
      if (option == "heads") given.heads = 2;
      if (option == "seed") given.seed = 9;
      if (option == "documents") given.documents = family.name == "shared_question" ? "9:4:4" : "11,6";
      if (option == "prefixes") given.prefixes = "1,1,1,1,1";
      if (option == "spans") given.spans = "1:4,9:15";
      if (option == "parents" || option == "lengths") {
        given.parents = "-1,0";
        given.lengths = "8,9";
      }
      const Mask usual = build_mask(family.name, plain), changed = build_mask(family.name, given);
      const bool differs = usual.shape() != changed.shape() || expand(usual) != expand(changed);
      EXPECT_TRUE(differs) << family.name << " --" << option;
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

TEST(MaskArguments, RefuseMasksThatNoMemoryHolds) {
  MaskArguments arguments = of_tokens(2147483647);
  arguments.heads = 2147483647;
  try {
    build_mask("random_eviction", arguments);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::out_of_memory);
  }
}

TEST(Names, NearestIsByEdits) {
  const std::vector<std::string> names = {"show", "check", "bench"};
  EXPECT_EQ(nearest_name("shwo", names), "show");
  EXPECT_EQ(nearest_name("benchmark", names), "bench");
  EXPECT_EQ(nearest_name("ch", names), "check");
  EXPECT_EQ(nearest_name("xyz", names), "");
  EXPECT_EQ(nearest_name("", names), "");
}

}  // namespace
}  // namespace flashmask::cli
