// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "c_api/callback_executor.h"
#include "jax/frame.h"

namespace flashmask::jax {

/// The threads of XLA's own pool, for the length of one call, so that only one pool of threads is alive.
class XlaThreads {
 public:
  explicit XlaThreads(const Frame& frame);
  XlaThreads(const XlaThreads&) = delete;
  XlaThreads& operator=(const XlaThreads&) = delete;

  Executor& executor() { return executor_; }

 private:
  void run(int count, void (*body)(void*, int), void* body_context) const;
  bool schedule(XLA_FFI_Task* task, void* data) const;

  const XLA_FFI_Api& api_;
  XLA_FFI_ExecutionContext* context_;
  int workers_;
  c_api::CallbackExecutor executor_;
};

}  // namespace flashmask::jax
