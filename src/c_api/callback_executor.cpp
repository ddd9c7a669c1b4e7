// SPDX-License-Identifier: Apache-2.0
#include "c_api/callback_executor.h"

#include <atomic>
#include <exception>
#include <mutex>
#include <string>

#include "c_api/guard.h"

namespace flashmask::c_api {
namespace {

/// State that run() shares with the bodies that the caller's threads execute.
struct Batch {
  const std::function<void(int)>* body;
  int count;
  std::atomic<int> finished{0};
  std::mutex mutex{};
  std::exception_ptr first_error{};

  void call(int index) noexcept {
    try {
      if (index < 0 || index >= count) {
        throw Error(Status::invalid_argument, "executor.run called body(" + std::to_string(index) + ") of " +
                                                  std::to_string(count) + "; call each of 0 to count - 1 once");
      }
      (*body)(index);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!first_error) first_error = std::current_exception();
    }
    finished.fetch_add(1, std::memory_order_release);
  }
};

void call_body(void* batch, int index) { static_cast<Batch*>(batch)->call(index); }

}  // namespace

CallbackExecutor::CallbackExecutor(const flashmask_executor& callbacks) : callbacks_(callbacks) {
  if (callbacks_.workers == nullptr || callbacks_.run == nullptr) {
    throw Error(Status::invalid_argument,
                "executor.workers or executor.run is NULL; give both functions, or no executor");
  }
}

int CallbackExecutor::workers() const {
  const int workers = callbacks_.workers(callbacks_.context);
  if (workers < 1) {
    throw Error(Status::invalid_argument,
                "executor.workers returned " + std::to_string(workers) + "; return at least 1");
  }
  return workers;
}

void CallbackExecutor::run(int count, const std::function<void(int)>& body) {
  if (count == 0) return;
  Batch batch{.body = &body, .count = count};
  callbacks_.run(callbacks_.context, count, call_body, &batch);
  const int finished = batch.finished.load(std::memory_order_acquire);
  if (batch.first_error) std::rethrow_exception(batch.first_error);
  if (finished != count) {
    throw Error(Status::invalid_argument, "executor.run returned after " + std::to_string(finished) + " of " +
                                              std::to_string(count) + " bodies; call each once before returning");
  }
}

}  // namespace flashmask::c_api
