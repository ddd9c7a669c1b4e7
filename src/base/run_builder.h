// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include "flashmask/tile.h"

namespace flashmask {

/// Writes run lists one after another; runs are added in ascending order, and neighbours of one kind become one run.
class RunBuilder {
 public:
  RunBuilder() { lists_.offsets.push_back(0); }

  void add(const Run& run) {
    const bool first = std::ssize(lists_.runs) == lists_.offsets.back();
    if (!first && lists_.runs.back().end == run.begin && lists_.runs.back().kind == run.kind) {
      lists_.runs.back().end = run.end;
    } else {
      lists_.runs.push_back(run);
    }
  }
  void end_list() { lists_.offsets.push_back(std::ssize(lists_.runs)); }

  const RunLists& lists() const { return lists_; }
  RunLists take() { return std::move(lists_); }

 private:
  RunLists lists_;
};

}  // namespace flashmask
