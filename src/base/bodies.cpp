// SPDX-License-Identifier: Apache-2.0
#include "base/bodies.h"

#include <atomic>
#include <cstddef>
#include <string>
#include <vector>

#include "base/checks.h"
#include "base/first_error.h"

namespace flashmask {
namespace {

/// What run_bodies() shares with the executor's threads.
class Bodies {
 public:
  Bodies(int count, const std::function<void(int)>& body)
      : count_(count), body_(body), called_(static_cast<std::size_t>(count)) {}

  void call(int index) {
    try {
      check(index);
      body_(index);
    } catch (...) {
      error_.capture();
    }
    finished_.fetch_add(1, std::memory_order_release);
  }

  void finish() const {
    const int finished = finished_.load(std::memory_order_acquire);
    error_.rethrow();
    if (finished != count_)
      refuse("executor.run returned after " + std::to_string(finished) + " of " + std::to_string(count_) +
             " bodies; call each once before returning");
  }

 private:
  void check(int index) {
    const bool known = index >= 0 && index < count_;
    if (known && !called_[static_cast<std::size_t>(index)].exchange(true, std::memory_order_relaxed)) return;
    refuse("executor.run called body(" + std::to_string(index) + ") of " + std::to_string(count_) +
           (known ? " twice" : "") + "; call each of 0 to count - 1 once");
  }

  const int count_;
  const std::function<void(int)>& body_;
  std::vector<std::atomic<bool>> called_;
  std::atomic<int> finished_{0};
  FirstError error_;
};

}  // namespace

int worker_count(const Executor& executor) {
  const int workers = executor.workers();
  if (workers < 1) refuse("executor.workers returned " + std::to_string(workers) + "; return at least 1");
  return workers;
}

void run_bodies(Executor& executor, int count, const std::function<void(int)>& body) {
  if (count == 0) return;
  Bodies bodies(count, body);
  executor.run(count, [&bodies](int index) { bodies.call(index); });
  bodies.finish();
}

}  // namespace flashmask
