// SPDX-License-Identifier: Apache-2.0
#include "flashmask/nodes.h"

#include <string>

#include "flashmask/error.h"

namespace flashmask {
namespace {

std::string token(const char* what, std::int64_t number) { return what + (" " + std::to_string(number)); }

/// Reads the columns of one batch entry, in ascending order, and appends its nodes.
class NodeFinder {
 public:
  NodeFinder(const IntervalMask& mask, std::int64_t batch, Nodes& nodes)
      : mask_(mask), batch_(batch), at_(batch * mask.shape().columns), nodes_(nodes) {}

  void find() {
    const std::int64_t tokens = mask_.shape().columns;
    ends_.reserve(static_cast<std::size_t>(tokens));
    bool follows = false;  // whether the token before is in a node
    for (std::int64_t i = 0; i < tokens; ++i) {
      const std::int64_t end = visible_end(i);
      ends_.push_back(end);
      nodes_.predecessors.push_back(-1);
      if (end > i) add(i, end, follows);
      follows = end > i;
    }
  }

 private:
  /// Returns the end of the rows that see a column, which begin with its own; the column itself where none does.
  std::int64_t visible_end(std::int64_t column) const {
    const std::size_t at = mask_.index(batch_, 0, column);
    const Interval first = mask_.first(at), second = mask_.second(at);
    const auto rows = static_cast<std::int32_t>(mask_.shape().rows);
    const std::int32_t begin = first.begin == 0 ? first.end : 0;
    if (begin == rows) return column;
    if (begin < column) refuse(column, token("is seen by row", begin) + ", which comes before it");
    if (begin > column) refuse(column, token("is not seen by its own row, only by row", begin) + " and later");
    const Interval hidden = first.begin == 0 ? second : first;  // of the rows from its own on
    if (hidden.empty()) return rows;
    if (hidden.end != rows || (first.begin != 0 && !second.empty()))
      refuse(column, "is hidden from " + token("row", hidden.begin) + " and seen by later ones");
    return hidden.begin;
  }

  /// Puts a token into the node of its predecessor, or into a new one.
  void add(std::int64_t i, std::int64_t end, bool follows) {
    while (!seen_.empty() && ends_[static_cast<std::size_t>(seen_.back())] <= i) seen_.pop_back();
    const std::int64_t before = seen_.empty() ? -1 : seen_.back();
    const std::int64_t until = before < 0 ? 0 : ends_[static_cast<std::size_t>(before)];
    if (before >= 0 && until < end)
      refuse(i, token("is seen by row", until) + ", which does not see " + token("column", before) + ", as " +
                    token("row", i) + " does");
    seen_.push_back(i);
    if (before >= 0) nodes_.predecessors.back() = at_ + before;
    if (follows && before == i - 1 && until == end) {
      nodes_.ends.back() = at_ + i + 1;
    } else {
      nodes_.parents.push_back(before < 0 ? -1 : node_of_[static_cast<std::size_t>(seen_.size() - 2)]);
      nodes_.levels.push_back(before < 0 ? 0 : nodes_.levels[static_cast<std::size_t>(nodes_.parents.back())] + 1);
      nodes_.begins.push_back(at_ + i);
      nodes_.ends.push_back(at_ + i + 1);
    }
    node_of_.resize(seen_.size());
    node_of_.back() = std::ssize(nodes_.begins) - 1;
  }

  [[noreturn]] void refuse(std::int64_t column, const std::string& why) const {
    throw Error(Status::invalid_argument, "nodes: " + token("batch entry", batch_) + ": " + token("column", column) +
                                              " " + why +
                                              "; a state passes from token to token, and neither forgets single "
                                              "ones nor knows later ones");
  }

  const IntervalMask& mask_;
  std::int64_t batch_, at_;
  Nodes& nodes_;
  std::vector<std::int64_t> ends_;     // of the rows that see each token so far
  std::vector<std::int64_t> seen_;     // what the latest token sees, itself last
  std::vector<std::int64_t> node_of_;  // and the nodes of these
};

/// Throws unless all heads see the same.
void check_heads(const IntervalMask& mask) {
  const MaskShape& shape = mask.shape();
  for (std::int64_t b = 0; b < shape.batch; ++b)
    for (std::int64_t h = 1; h < shape.heads; ++h)
      for (std::int64_t column = 0; column < shape.columns; ++column) {
        const std::size_t at = mask.index(b, h, column), first = mask.index(b, 0, column);
        if (mask.first(at) != mask.first(first) || mask.second(at) != mask.second(first))
          throw Error(Status::invalid_argument, "nodes: " + token("column", column) + " of " + token("mask head", h) +
                                                    " differs from that of head 0; a layer with a state needs one mask "
                                                    "for all heads");
      }
}

}  // namespace

Nodes nodes(const Mask& mask) {
  const MaskShape& shape = mask.shape();
  if (shape.rows != shape.columns)
    throw Error(Status::invalid_argument, "nodes: the mask has " + std::to_string(shape.rows) + " rows and " +
                                              std::to_string(shape.columns) +
                                              " columns; expected as many, the same tokens");
  if (shape.heads == 0)
    throw Error(Status::invalid_argument,
                "nodes: the mask has 0 heads; expected at least one, which says what its tokens see");
  const LoweredMask& lowered = mask.lowered();
  if (lowered.form() != MaskForm::intervals || lowered.blocks() != nullptr)
    throw Error(Status::unsupported,
                "nodes: " + mask.description() + " is held as " +
                    (lowered.blocks() != nullptr ? "intervals beside a block map" : to_string(lowered.form())) + " (" +
                    lowered.why() + "); expected one range of rows per column");
  check_heads(lowered.intervals());
  Nodes found;
  found.predecessors.reserve(static_cast<std::size_t>(shape.batch * shape.columns));
  for (std::int64_t b = 0; b < shape.batch; ++b) NodeFinder(lowered.intervals(), b, found).find();
  return found;
}

}  // namespace flashmask
