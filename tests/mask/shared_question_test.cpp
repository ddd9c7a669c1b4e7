// SPDX-License-Identifier: Apache-2.0
#include "flashmask/builders.h"
#include "mask/visibility.h"

namespace flashmask {
namespace {

using masks::SharedQuestion;
using testing::refusal;
using testing::Table;

/// What each token belongs to: its document and, within it, 0 for the question, 1 … for the answers.
struct Roles {
  std::vector<std::int64_t> document, part;

  void append(std::int64_t which_document, std::int64_t which_part, std::int64_t length) {
    document.insert(document.end(), static_cast<std::size_t>(length), which_document);
    part.insert(part.end(), static_cast<std::size_t>(length), which_part);
  }
};

Roles roles(const std::vector<SharedQuestion>& documents, std::int64_t tokens) {
  Roles all;
  for (std::size_t k = 0; k < documents.size(); ++k) {
    const auto number = static_cast<std::int64_t>(k);
    all.append(number, 0, documents[k].question);
    for (std::size_t a = 0; a < documents[k].answers.size(); ++a) {
      all.append(number, static_cast<std::int64_t>(a) + 1, documents[k].answers[a]);
    }
  }
  all.append(-1, 0, tokens - static_cast<std::int64_t>(all.document.size()));
  return all;
}

TEST(SharedQuestion, AnswersSeeTheQuestionAndThemselvesOnly) {
  const std::vector<std::vector<SharedQuestion>> packings = {
      {},
      {{4, {3, 3}}},
      {{0, {2, 0, 5}}, {6, {}}, {0, {}}, {1, {1, 1, 1, 1, 1, 1}}},
      {{5, {0}}, {2, {7, 3, 4}}, {9, {1, 8}}},
  };
  for (const auto& documents : packings) {
    const std::int64_t tokens = 48;
    const Roles all = roles(documents, tokens);
    testing::expect_visible(masks::shared_question(documents, tokens),
                            [d = Table(all.document), part = Table(all.part)](auto i, auto j) {
                              return d[i] >= 0 && d[i] == d[j] && j <= i && (part[j] == 0 || part[j] == part[i]);
                            });
  }
}

TEST(SharedQuestion, RefusesDocumentsThatDoNotFit) {
  const std::vector<SharedQuestion> documents = {{4, {3, 3}}, {1, {1}}};
  EXPECT_EQ(
      refusal([&] { masks::shared_question(documents, 11); }),
      "shared_question: documents add up to 12 tokens but tokens is 11; give tokens >= 12 or shorten the documents");
}

TEST(SharedQuestion, RefusesANegativeAnswer) {
  const std::vector<SharedQuestion> documents = {{4, {3, 3}}, {1, {5, -1}}};
  EXPECT_EQ(
      refusal([&] { masks::shared_question(documents, 40); }),
      "shared_question: documents[1] (question, answers)[2] is -1; give a size from 0 to 2,147,483,647 (2^31 - 1)");
}

}  // namespace
}  // namespace flashmask
