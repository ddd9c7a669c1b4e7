// SPDX-License-Identifier: Apache-2.0
#include "c_api/callback_executor.h"

#include "c_api/guard.h"

namespace flashmask::c_api {
namespace {

void call_body(void* body, int index) { (*static_cast<const std::function<void(int)>*>(body))(index); }

}  // namespace

CallbackExecutor::CallbackExecutor(const flashmask_executor& callbacks) : callbacks_(callbacks) {
  if (callbacks_.workers == nullptr || callbacks_.run == nullptr) {
    throw Error(Status::invalid_argument,
                "executor.workers or executor.run is NULL; give both functions, or no executor");
  }
}

int CallbackExecutor::workers() const { return callbacks_.workers(callbacks_.context); }

void CallbackExecutor::run(int count, const std::function<void(int)>& body) {
  callbacks_.run(callbacks_.context, count, call_body, const_cast<std::function<void(int)>*>(&body));
}

}  // namespace flashmask::c_api
