// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cli/files/csv_lengths.h"
#include "cli/masks/packing.h"
#include "flashmask/mask.h"

namespace flashmask::cli {

/// What is trained; it determines the mask of a packed sequence.
enum class Task : std::uint8_t {
  sft,       ///< causal documents of prompt and output
  dpo,       ///< a prompt shared by two answers
  rm,        ///< a prompt shared by two to six answers
  document,  ///< documents that see themselves both ways
  prefix,    ///< prefix-LM documents: the prompt both ways, the output causally
};

/// One document: a prompt and what follows it.
struct Document {
  std::int64_t prompt = 0;
  std::vector<std::int64_t> answers;

  std::int64_t tokens() const;
};

/// The documents of a task, and the number of trailing rows that are too few to make one.
struct Documents {
  std::vector<Document> documents;
  std::int64_t rows_left_over = 0;
};

/// Makes documents from a table whose column 0 is the prompt and whose others are outputs. Throws when the task cannot
/// use that many outputs.
Documents documents_of(Task task, const LengthTable& table);

/// The mask of one packed sequence.
Mask mask_of(Task task, std::span<const Document> documents, const PackedSequence& sequence, std::int64_t seqlen);

std::string to_string(Task task);

/// Throws Status::invalid_argument for an unknown name.
Task parse_task(const std::string& name);

inline const std::vector<std::string> kTaskNames = {"sft", "dpo", "rm", "document", "prefix"};

}  // namespace flashmask::cli
