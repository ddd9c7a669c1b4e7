// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "flashmask/export.h"
#include "flashmask/language_standard.h"

namespace flashmask {

/// Where CPU work runs. A host framework passes its own, so that only one pool of threads is alive.
class FLASHMASK_API Executor {
 public:
  virtual ~Executor() = default;

  /// How many workers may run at once; at least 1.
  virtual int workers() const = 0;

  /// Calls body(0) … body(count − 1), each once, concurrently or one after another in ascending order, and returns
  /// when all have returned. The first exception that leaves a body is rethrown. Calls refuse executors that do not.
  virtual void run(int count, const std::function<void(int)>& body) = 0;
};

/// The library's own pool. It starts on first use with as many threads as the process may use (CPU affinity and
/// cgroup quota), or FLASHMASK_THREADS; fewer where that many cannot be started. Calls from inside a body, or from a
/// second thread while the pool is busy, run on the calling thread alone.
FLASHMASK_API Executor& default_executor();

/// Sets how many threads the default executor uses from the next call on; 0 restores the automatic choice.
FLASHMASK_API void set_thread_count(int threads);

/// Runs everything on the calling thread.
FLASHMASK_API Executor& serial_executor();

}  // namespace flashmask
