// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "flashmask/attention.h"

namespace flashmask {

/// Returns the executor that runs the tasks of a call on the CPU.
inline Executor& executor_of(const Execution& execution) {
  return execution.executor != nullptr ? *execution.executor : default_executor();
}

}  // namespace flashmask
