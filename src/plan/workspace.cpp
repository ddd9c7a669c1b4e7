// SPDX-License-Identifier: Apache-2.0
#include "plan/workspace.h"

#include "flashmask/error.h"

namespace flashmask {

Workspace allocate_workspace(const std::string& call, std::size_t bytes, int workers) {
  try {
    return Workspace(static_cast<std::byte*>(::operator new(bytes, std::align_val_t(kWorkspaceAlignment))));
  } catch (const std::bad_alloc&) {
    throw Error(Status::out_of_memory, call + ": no memory for a workspace of " + std::to_string(bytes) +
                                           " bytes for " + std::to_string(workers) +
                                           " workers; free memory, or take fewer workers or a smaller batch");
  }
}

}  // namespace flashmask
