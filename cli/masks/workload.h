// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/files/csv_lengths.h"
#include "cli/masks/packing.h"
#include "cli/masks/tasks.h"
#include "flashmask/mask.h"

namespace flashmask::cli {

struct WorkloadRequest {
  std::string csv;                   ///< empty: the shipped lengths
  std::string prompt;                ///< column; empty: the prompt column of the shipped lengths
  std::vector<std::string> outputs;  ///< columns
  Task task = Task::sft;
  Packing packing = Packing::order;
  std::int64_t seqlen = 0;
  std::int64_t sequences = 1;
};

/// Real lengths, packed. There are fewer sequences than requested when the documents run out.
struct Workload {
  std::string csv;
  Task task = Task::sft;
  std::int64_t seqlen = 0;
  std::vector<Document> documents;
  Packed packed;
  std::int64_t rows_left_over = 0;

  std::int64_t packed_documents() const;
  std::int64_t packed_tokens() const;
  std::int64_t padding() const;
  std::int64_t sequences() const { return std::ssize(packed.sequences); }

  /// The mask of one sequence.
  Mask mask(std::int64_t sequence) const;
  /// The masks of all sequences, as one batch.
  Mask mask() const;
};

/// Reads and packs the lengths. Throws when the file, its columns or its lengths do not fit the task.
Workload load_workload(const WorkloadRequest& request);

}  // namespace flashmask::cli
