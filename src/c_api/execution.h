// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "c_api/callback_executor.h"
#include "c_api/sized_struct.h"
#include "flashmask/attention.h"

namespace flashmask::c_api {

/// Returns the caller's executor, if there is one.
inline std::optional<CallbackExecutor> borrow(const flashmask_executor* executor) {
  if (executor == nullptr) return std::nullopt;
  return CallbackExecutor(read_struct(executor, "executor"));
}

/// Calls `run` with the Execution of a call without a plan of attention: an executor, a workspace and a stream.
template <typename Run>
void execute(const flashmask_execution* execution, Run&& run) {
  const flashmask_execution given = read_optional_struct(execution, "execution");
  auto executor = borrow(given.executor);
  run(Execution{.executor = executor ? &*executor : nullptr,
                .workspace = given.workspace,
                .workspace_bytes = given.workspace_bytes,
                .stream = given.stream});
}

}  // namespace flashmask::c_api
