// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/checks.h"
#include "flashmask/attention.h"

namespace flashmask {

/// Returns the executor that runs the tasks of a call on the CPU. Throws where the call is given a stream, which the
/// caller would wait for in vain.
inline Executor& executor_of(const Execution& execution) {
  if (execution.stream != nullptr) refuse("execution.stream is given but the call is on the CPU; pass none");
  return execution.executor != nullptr ? *execution.executor : default_executor();
}

}  // namespace flashmask
