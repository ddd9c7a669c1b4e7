// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <sstream>

#include "flashmask/builders.h"
#include "mask/visibility.h"
#include "source_folder.h"

namespace flashmask {
namespace {

using Lengths = std::vector<std::int64_t>;

struct Picture {
  std::string title;
  Mask mask;
};

Mask hashed() {
  const std::vector<masks::HashedToken> queries = {{0, 0}, {0, 3}, {0, 6}, {1, 1}, {1, 4},
                                                   {1, 7}, {2, 2}, {2, 5}, {2, 8}, {2, 9}};
  const std::vector<masks::HashedToken> keys = {{0, 0}, {0, 2}, {0, 5}, {0, 8}, {1, 1},
                                                {1, 6}, {2, 3}, {2, 4}, {2, 7}, {2, 9}};
  return masks::hash_sparse_sorted(queries, keys);
}

std::vector<std::uint8_t> kept(std::initializer_list<int> tokens) { return {tokens.begin(), tokens.end()}; }

/// The calls of the tables in docs/masks.md.
std::vector<Picture> gallery() {
  using namespace masks;
  const Lengths documents = {4, 3, 3};
  const std::vector<SharedQuestion> question = {{4, {3, 3}}};
  const std::vector<VisiblePair> edges = {{0, 4}, {4, 9}, {1, 7}, {2, 3}, {8, 2}};
  return {
      {"0 full", full(10, 10)},
      {"1 causal", causal(10, 10)},
      {"2 sliding", sliding_window(10, 10, 3)},
      {"window", window(10, 10, 2, 1)},
      {"3 causal doc", causal_document(documents, 10)},
      {"3 two lengths", causal_document(Lengths{3, 5, 2}, Lengths{4, 2, 4})},
      {"4 document", document(documents, 10)},
      {"4 two lengths", document(Lengths{3, 5, 2}, Lengths{4, 2, 4})},
      {"sliding doc", sliding_window_document(Lengths{6, 4}, 10, 2)},
      {"5 shared", shared_question(question, 10)},
      {"6 global", global_sliding_window(10, 2, 1, 1)},
      {"7 blockwise", causal_blockwise(documents, 10)},
      {"8 prefix doc", prefix_lm_document(Lengths{3, 2, 5}, Lengths{2, 2, 2}, 10)},
      {"9 prefix", prefix_lm_causal(10, 5)},
      {"10 qk sparse", qk_sparse_segments(10, std::vector<Span>{{2, 5}, {6, 8}})},
      {"11 hash", hashed()},
      {"12 eviction", random_eviction(10, Lengths{10, 4, 8, 6, 10, 7, 10, 9, 10, 10}, 1)},
      {"tree", tree(Lengths{-1, 0, 0, 2, 2}, Lengths{2, 2, 1, 3, 2}, 10).mask},
      {"spans", bidirectional_spans(10, std::vector<Span>{{1, 4}, {6, 9}})},
      {"diffusion", block_diffusion(5, 2)},
      {"dilated", dilated_window(10, 10, 2, 1, 2)},
      {"global tokens", global_tokens(10, Lengths{2, 7}, 1, 1)},
      {"big bird", big_bird(10, {.block = 1, .global_blocks = 1, .random_blocks = 2, .seed = 1})},
      {"grid 2 x 5", neighbourhood_2d({2, 2}, {5, 3})},
      {"grid 5 x 2 x 1", neighbourhood_3d({5, 3}, {2, 1}, {1, 1})},
      {"dilated grid", neighbourhood(std::vector<NeighbourhoodAxis>{{10, 3, 3}})},
      {"strided", strided_factorised(10, 3)},
      {"fixed", fixed_factorised(10, 4, 1)},
      {"scfa hash", scfa_hash_sparse(Lengths{0, 1, 2, 0, 1, 2, 0, 1, 2, 2}, Lengths{0, 1, 0, 2, 2, 0, 1, 2, 0, 2}, 1)},
      {"scfa qk", scfa_qk_sparse(kept({1, 1, 0, 1, 1, 1, 0, 0, 1, 1}), kept({1, 0, 1, 1, 0, 1, 1, 1, 0, 1}), 1)},
      {"dropped", drop_queries(window(10, 10, 2, 1), Lengths{2, 5, 6})},
      {"in order", tree_in_order(Lengths{-1, 0, 0, 1, 2, 1, 2, 5}, 8, 2)},
      {"medusa", medusa_tree(Lengths{2, 2, 1}, 10)},
      {"self, parent", medusa_tree(Lengths{2, 2, 1}, 10, 0, TreeSight::parent)},
      {"graph", graph(10, edges, {.symmetric = true, .self_loops = true})},
  };
}

std::string without_trailing_spaces(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

/// Five pictures side by side, titles above.
std::string drawn(std::vector<Picture>::const_iterator first, std::vector<Picture>::const_iterator last) {
  std::vector<std::string> lines(11);
  for (; first != last; ++first) {
    std::istringstream rows(first->title + "\n" + testing::picture(first->mask));
    std::string row;
    for (std::string& line : lines) {
      std::getline(rows, row);
      row.resize(15, ' ');
      line += row;
    }
  }
  std::string text;
  for (const std::string& line : lines) text += without_trailing_spaces(line) + "\n";
  return text;
}

TEST(Documentation, ShowsWhatTheBuildersGive) {
  std::ifstream file(test::source_folder() + "/docs/masks.md");
  const std::string page((std::istreambuf_iterator<char>(file)), {});
  const std::vector<Picture> pictures = gallery();
  for (auto first = pictures.begin(); first != pictures.end(); first += 5) {
    const std::string block = drawn(first, first + 5);
    EXPECT_NE(page.find(block), std::string::npos) << "docs/masks.md should hold\n" << block;
  }
}

}  // namespace
}  // namespace flashmask
