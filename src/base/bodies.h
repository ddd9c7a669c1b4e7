// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "flashmask/executor.h"

/// How the library uses executors. They are the caller's: what one breaks of its contract is refused, as results that
/// nobody computed look like others.
namespace flashmask {

/// Returns how many workers an executor has; throws Status::invalid_argument where it says fewer than one.
int worker_count(const Executor& executor);

/// Calls body(0) … body(count − 1) through an executor. The first exception of a body is rethrown here, and none passes
/// through the executor. Throws Status::invalid_argument unless each body was called once.
void run_bodies(Executor& executor, int count, const std::function<void(int)>& body);

}  // namespace flashmask
