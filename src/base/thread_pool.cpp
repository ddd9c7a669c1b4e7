// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/available_processors.h"
#include "base/first_error.h"
#include "flashmask/error.h"
#include "flashmask/executor.h"

namespace flashmask {
namespace {

constexpr int kMaxThreads = 1024;

class SerialExecutor final : public Executor {
 public:
  int workers() const override { return 1; }

  void run(int count, const std::function<void(int)>& body) override {
    FirstError error;
    for (int i = 0; i < count; ++i) {
      try {
        body(i);
      } catch (...) {
        error.capture();
      }
    }
    error.rethrow();
  }
};

int threads_from_environment() {
  const char* text = std::getenv("FLASHMASK_THREADS");
  if (text == nullptr || *text == '\0') return 0;
  char* end = nullptr;
  const long threads = std::strtol(text, &end, 10);
  if (*end != '\0' || threads < 1 || threads > kMaxThreads)
    throw Error(Status::invalid_argument, std::string("FLASHMASK_THREADS is \"") + text +
                                              "\"; expected a number from 1 to " + std::to_string(kMaxThreads));
  return static_cast<int>(threads);
}

/// A parallel run, whose threads take the remaining bodies one at a time.
class Job {
 public:
  Job(int count, const std::function<void(int)>& body) : count_(count), body_(body) {}

  void work() {
    inside_body() = true;
    for (int i = next_++; i < count_; i = next_++) {
      try {
        body_(i);
      } catch (...) {
        error_.capture();
      }
    }
    inside_body() = false;
  }
  void rethrow() const { error_.rethrow(); }

  /// Whether this thread is working on a job.
  static bool& inside_body() {
    thread_local bool inside = false;
    return inside;
  }

 private:
  const int count_;
  const std::function<void(int)>& body_;
  std::atomic<int> next_{0};
  FirstError error_;
};

/// Threads that sleep between runs, started when first needed. The caller works too, so a run needs one thread fewer.
/// Never destroyed: its threads run until the process ends.
class Crew {
 public:
  /// Held by the caller whose job runs.
  std::mutex& running() { return running_; }

  void run(int threads, Job& job) {
    {
      const std::scoped_lock lock(mutex_);
      start(threads - 1);
      job_ = &job;
      seats_ = threads - 1;
    }
    wake_.notify_all();
    job.work();
    std::unique_lock lock(mutex_);
    job_ = nullptr;
    done_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  /// Starts threads up to `wanted`, or fewer where the machine has no more threads or no memory for them: those that
  /// exist do the work.
  void start(int wanted) {
    try {
      while (static_cast<int>(threads_.size()) < wanted) threads_.emplace_back([this] { serve(); });
    } catch (const std::system_error&) {
    } catch (const std::bad_alloc&) {
    }
  }

  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return job_ != nullptr && seats_ > 0; });
      Job* job = job_;
      --seats_;
      ++busy_;
      lock.unlock();
      job->work();
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }

  std::mutex running_;
  std::mutex mutex_;  ///< guards the members below
  std::condition_variable wake_, done_;
  std::vector<std::thread> threads_;
  Job* job_ = nullptr;
  int seats_ = 0;
  int busy_ = 0;
};

class ThreadPool final : public Executor {
 public:
  int workers() const override {
    const int wanted = wanted_.load(std::memory_order_relaxed);
    if (wanted != 0) return wanted;
    const int from_environment = threads_from_environment();
    return from_environment != 0 ? from_environment : available_processors();
  }

  void set_threads(int threads) { wanted_.store(threads, std::memory_order_relaxed); }

  void run(int count, const std::function<void(int)>& body) override {
    // A body that calls back must not wait for the pool it runs on: it works alone, as a second caller does.
    const std::unique_lock running(crew_->running(), std::try_to_lock);
    const int threads = std::min(workers(), count);
    if (Job::inside_body() || !running.owns_lock() || threads <= 1) {
      serial_executor().run(count, body);
      return;
    }
    Job job(count, body);
    crew_->run(threads, job);
    job.rethrow();
  }

  /// Replaces the crew in the child of a fork, which has none of its parent's threads but any locks that they held.
  void start_anew() {
    parents_ = crew_;
    crew_ = new Crew;
  }

 private:
  std::atomic<int> wanted_{0};
  Crew* crew_ = new Crew;
  Crew* parents_ = nullptr;  ///< can be neither used nor destroyed
};

ThreadPool& pool() {
  // Never destroyed: other threads may be calling while the process ends.
  static ThreadPool& instance = *new ThreadPool;
  // Data loaders fork workers out of processes whose pool has started.
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, [] { pool().start_anew(); });
  return instance;
}

}  // namespace

Executor& default_executor() { return pool(); }

Executor& serial_executor() {
  static SerialExecutor instance;
  return instance;
}

void set_thread_count(int threads) {
  if (threads < 0 || threads > kMaxThreads)
    throw Error(Status::invalid_argument, "set_thread_count: threads is " + std::to_string(threads) +
                                              "; expected 1 to " + std::to_string(kMaxThreads) +
                                              ", or 0 for automatic");
  pool().set_threads(threads);
}

}  // namespace flashmask
