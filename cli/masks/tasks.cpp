// SPDX-License-Identifier: Apache-2.0
#include "cli/masks/tasks.h"

#include <algorithm>
#include <numeric>

#include "cli/base/names.h"
#include "flashmask/builders.h"
#include "flashmask/error.h"

namespace flashmask::cli {
namespace {

/// How many outputs a task can use: in one row, and joined from consecutive rows that have one output each.
struct AnswerCounts {
  std::size_t fewest, most;
  std::int64_t rows_joined, rows_needed;
};

AnswerCounts answer_counts(Task task) {
  switch (task) {
    case Task::dpo:
      return {1, 2, 2, 2};
    case Task::rm:
      return {1, 6, 6, 2};
    case Task::prefix:
      return {1, 1, 1, 1};
    default:
      return {0, 1, 1, 1};
  }
}

void check_outputs(Task task, std::size_t outputs) {
  const auto [fewest, most, rows_joined, rows_needed] = answer_counts(task);
  if (outputs >= fewest && outputs <= most) return;
  const std::string expected =
      fewest == most ? std::to_string(most) : std::to_string(fewest) + " to " + std::to_string(most);
  throw Error(Status::invalid_argument, "attend: --outputs names " + std::to_string(outputs) + " columns; --task " +
                                            to_string(task) + " takes " + expected);
}

/// The prompt of the first row and every output of `count` rows.
Document join_rows(const LengthTable& table, std::int64_t first, std::int64_t count) {
  Document document{.prompt = table.at(first, 0), .answers = {}};
  for (std::int64_t row = first; row < first + count; ++row) {
    for (std::size_t column = 1; column < table.columns.size(); ++column) {
      document.answers.push_back(table.at(row, column));
    }
  }
  return document;
}

std::vector<std::int64_t> lengths_of(std::span<const Document> documents, const PackedSequence& sequence) {
  std::vector<std::int64_t> lengths;
  for (const std::size_t i : sequence.documents) lengths.push_back(documents[i].tokens());
  return lengths;
}

std::vector<std::int64_t> prompts_of(std::span<const Document> documents, const PackedSequence& sequence) {
  std::vector<std::int64_t> prompts;
  for (const std::size_t i : sequence.documents) prompts.push_back(documents[i].prompt);
  return prompts;
}

std::vector<masks::SharedQuestion> questions_of(std::span<const Document> documents, const PackedSequence& sequence) {
  std::vector<masks::SharedQuestion> questions;
  for (const std::size_t i : sequence.documents) questions.push_back({documents[i].prompt, documents[i].answers});
  return questions;
}

}  // namespace

std::int64_t Document::tokens() const { return std::accumulate(answers.begin(), answers.end(), prompt); }

Documents documents_of(Task task, const LengthTable& table) {
  const std::size_t outputs = table.columns.size() - 1;
  check_outputs(task, outputs);
  const AnswerCounts counts = answer_counts(task);
  const std::int64_t joined = outputs == 1 ? counts.rows_joined : 1;
  const std::int64_t needed = outputs == 1 ? counts.rows_needed : 1;
  Documents made;
  for (std::int64_t row = 0; row < table.rows(); row += joined) {
    const std::int64_t here = std::min(joined, table.rows() - row);
    if (here < needed) {
      made.rows_left_over = here;
    } else {
      made.documents.push_back(join_rows(table, row, here));
    }
  }
  return made;
}

Mask mask_of(Task task, std::span<const Document> documents, const PackedSequence& sequence, std::int64_t seqlen) {
  switch (task) {
    case Task::dpo:
    case Task::rm:
      return masks::shared_question(questions_of(documents, sequence), seqlen);
    case Task::document:
      return masks::document(lengths_of(documents, sequence), seqlen);
    case Task::prefix:
      return masks::prefix_lm_document(lengths_of(documents, sequence), prompts_of(documents, sequence), seqlen);
    case Task::sft:
      break;
  }
  return masks::causal_document(lengths_of(documents, sequence), seqlen);
}

std::string to_string(Task task) { return kTaskNames[static_cast<std::size_t>(task)]; }

Task parse_task(const std::string& name) {
  const auto found = std::find(kTaskNames.begin(), kTaskNames.end(), name);
  if (found == kTaskNames.end()) {
    throw Error(Status::invalid_argument, "no task \"" + name + "\"; the tasks are " + join(kTaskNames));
  }
  return static_cast<Task>(found - kTaskNames.begin());
}

}  // namespace flashmask::cli
