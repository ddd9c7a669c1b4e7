// SPDX-License-Identifier: Apache-2.0
#include "cli/masks/workload.h"

#include "cli/base/quantities.h"
#include "cli/files/shipped_data.h"
#include "flashmask/error.h"

namespace flashmask::cli {
namespace {

constexpr const char* kShippedLengths = "alpaca_lengths.csv";
constexpr const char* kShippedPrompt = "gpt2_prompt";
constexpr const char* kShippedOutput = "gpt2_out";

/// A prompt column alone is a list of document lengths; no column at all means the shipped names.
std::vector<std::string> columns_of(const WorkloadRequest& request) {
  std::vector<std::string> columns = {request.prompt.empty() ? kShippedPrompt : request.prompt};
  columns.insert(columns.end(), request.outputs.begin(), request.outputs.end());
  if (request.prompt.empty() && request.outputs.empty()) columns.emplace_back(kShippedOutput);
  return columns;
}

std::vector<std::int64_t> lengths_of(const std::vector<Document>& documents) {
  std::vector<std::int64_t> lengths;
  lengths.reserve(documents.size());
  for (const Document& document : documents) lengths.push_back(document.tokens());
  return lengths;
}

void check_packed(const Workload& workload) {
  if (workload.packed_tokens() > 0) return;
  const std::string why = workload.documents.empty()
                              ? "it holds no document for --task " + to_string(workload.task)
                              : "none of its " + with_commas(std::ssize(workload.documents)) + " documents has 1 to " +
                                    with_commas(workload.seqlen) + " tokens; give a longer --seqlen";
  throw Error(Status::invalid_argument, "attend: nothing to attend over in " + workload.csv + ": " + why);
}

}  // namespace

std::int64_t Workload::packed_documents() const {
  std::int64_t count = 0;
  for (const PackedSequence& sequence : packed.sequences) count += std::ssize(sequence.documents);
  return count;
}

std::int64_t Workload::packed_tokens() const {
  std::int64_t tokens = 0;
  for (const PackedSequence& sequence : packed.sequences) tokens += sequence.tokens;
  return tokens;
}

std::int64_t Workload::padding() const { return sequences() * seqlen - packed_tokens(); }

Mask Workload::mask(std::int64_t sequence) const {
  return mask_of(task, documents, packed.sequences[static_cast<std::size_t>(sequence)], seqlen);
}

Mask Workload::mask() const {
  std::vector<Mask> masks;
  for (std::int64_t sequence = 0; sequence < sequences(); ++sequence) masks.push_back(mask(sequence));
  return masks.size() == 1 ? masks.front() : stack_batch(masks);
}

Workload load_workload(const WorkloadRequest& request) {
  Workload workload;
  workload.csv = request.csv.empty() ? shipped_data(kShippedLengths) : request.csv;
  workload.task = request.task;
  workload.seqlen = request.seqlen;
  Documents made = documents_of(request.task, read_lengths(workload.csv, columns_of(request)));
  workload.documents = std::move(made.documents);
  workload.rows_left_over = made.rows_left_over;
  workload.packed = pack(lengths_of(workload.documents), request.seqlen, request.sequences, request.packing);
  check_packed(workload);
  return workload;
}

}  // namespace flashmask::cli
