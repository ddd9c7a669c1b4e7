// SPDX-License-Identifier: Apache-2.0
#include "jax/xla_threads.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

namespace flashmask::jax {
namespace {

/// How many threads XLA has; 1 where it has no pool.
int thread_count(const Frame& frame) {
  std::int64_t count = 0;
  XLA_FFI_ThreadPool_NumThreads_Args asked{XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE, nullptr, frame.context(),
                                           &count};
  if (!succeeded(frame.api(), frame.api().XLA_FFI_ThreadPool_NumThreads(&asked))) return 1;
  return static_cast<int>(std::clamp<std::int64_t>(count, 1, 1024));
}

/// Bodies that the caller and its helpers take one by one. A helper that XLA starts after run() has returned finds none
/// left: it never touches the caller's body, only this, which it owns a share of.
struct Bodies {
  Bodies(int number, void (*called)(void*, int), void* context) : count(number), body(called), body_context(context) {}

  const int count;
  void (*const body)(void*, int);
  void* const body_context;
  std::atomic<int> next{0};
  int finished = 0;
  std::mutex mutex{};
  std::condition_variable all_finished{};

  void take_all() {
    int mine = 0;
    for (int i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
      body(body_context, i);
      ++mine;
    }
    if (mine == 0) return;
    const std::scoped_lock lock(mutex);
    finished += mine;
    if (finished == count) all_finished.notify_all();
  }

  void wait() {
    std::unique_lock lock(mutex);
    all_finished.wait(lock, [&] { return finished == count; });
  }
};

void help(void* share) {
  const std::unique_ptr<std::shared_ptr<Bodies>> bodies(static_cast<std::shared_ptr<Bodies>*>(share));
  (*bodies)->take_all();
}

}  // namespace

XlaThreads::XlaThreads(const Frame& frame)
    : api_(frame.api()),
      context_(frame.context()),
      workers_(thread_count(frame)),
      executor_(
          {.struct_size = sizeof(flashmask_executor),
           .context = this,
           .workers = [](void* self) { return static_cast<const XlaThreads*>(self)->workers_; },
           .run = [](void* self, int count, void (*body)(void*, int),
                     void* body_context) { static_cast<const XlaThreads*>(self)->run(count, body, body_context); }}) {}

bool XlaThreads::schedule(XLA_FFI_Task* task, void* data) const {
  XLA_FFI_ThreadPool_Schedule_Args asked{XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE, nullptr, context_, task, data};
  return succeeded(api_, api_.XLA_FFI_ThreadPool_Schedule(&asked));
}

/// The caller takes bodies too and waits only for those that have begun, so that calls which hold all of XLA's threads
/// at once still end.
void XlaThreads::run(int count, void (*body)(void*, int), void* body_context) const {
  const int helpers = std::min(workers_, count) - 1;
  if (helpers == 0) {
    for (int i = 0; i < count; ++i) body(body_context, i);
    return;
  }
  const auto bodies = std::make_shared<Bodies>(count, body, body_context);
  for (int i = 0; i < helpers; ++i) {
    auto share = std::make_unique<std::shared_ptr<Bodies>>(bodies);
    if (!schedule(help, share.get())) break;
    share.release();
  }
  bodies->take_all();
  bodies->wait();
}

}  // namespace flashmask::jax
