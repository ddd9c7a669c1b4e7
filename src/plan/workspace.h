// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <string>

#include "plan/plan_choice.h"

namespace flashmask {

struct FreeWorkspace {
  void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t(kWorkspaceAlignment)); }
};
using Workspace = std::unique_ptr<std::byte, FreeWorkspace>;

/// Allocates the workspace of a call; throws Status::out_of_memory, naming the call, where there is no memory.
Workspace allocate_workspace(const std::string& call, std::size_t bytes, int workers);

}  // namespace flashmask
