// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "flashmask/c_api.h"
#include "flashmask/executor.h"

namespace flashmask::c_api {

/// An Executor that calls the C caller's functions. The bodies that it is given, those of run_bodies(), throw nothing.
class CallbackExecutor final : public Executor {
 public:
  /// Throws when a function is missing.
  explicit CallbackExecutor(const flashmask_executor& callbacks);

  int workers() const override;
  void run(int count, const std::function<void(int)>& body) override;

 private:
  flashmask_executor callbacks_;
};

}  // namespace flashmask::c_api
