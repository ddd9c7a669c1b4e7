// SPDX-License-Identifier: Apache-2.0
#include "mask/builders/packing.h"

namespace flashmask::masks {
namespace {

/// Returns the lengths of one document's parts, question first.
std::vector<std::int64_t> parts(const SharedQuestion& document) {
  std::vector<std::int64_t> lengths{document.question};
  lengths.insert(lengths.end(), document.answers.begin(), document.answers.end());
  return lengths;
}

std::vector<std::int64_t> document_lengths(std::span<const SharedQuestion> documents) {
  std::vector<std::int64_t> lengths;
  for (std::size_t k = 0; k < documents.size(); ++k) {
    const std::string argument = "documents[" + std::to_string(k) + "] (question, answers)";
    lengths.push_back(sum_of("shared_question", argument, parts(documents[k])));
  }
  return lengths;
}

void show_causally(IntervalMask& mask, Span columns, std::int64_t last_row) {
  for (std::int64_t j = columns.begin; j < columns.end; ++j) show_column(mask, j, {j, last_row});
}

}  // namespace

Mask shared_question(Elements<SharedQuestion> documents, std::int64_t tokens) {
  IntervalMask mask = all_visible("shared_question", tokens);
  const std::vector<std::int64_t> lengths = document_lengths(documents);
  const std::int64_t used = check_fit("shared_question", "documents", lengths, tokens);
  std::int64_t begin = 0;
  for (std::size_t k = 0; k < documents.size(); ++k) {
    const std::int64_t end = begin + lengths[k];
    std::int64_t answer = begin + documents[k].question;
    show_causally(mask, {begin, answer}, end);
    for (const std::int64_t length : documents[k].answers) {
      show_causally(mask, {answer, answer + length}, answer + length);
      answer += length;
    }
    begin = end;
  }
  hide_columns_from(mask, used);
  return Mask(std::move(mask), "shared_question(" + counted(documents.size(), "document") + ")");
}

}  // namespace flashmask::masks
