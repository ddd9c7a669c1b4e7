#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cpu/available_processors.h"
#include "flashmask/error.h"
#include "flashmask/executor.h"

namespace flashmask {
namespace {

constexpr int kMaxThreads = 1024;

/// The first exception of a parallel run.
class FirstError {
 public:
  void capture() {
    const std::scoped_lock lock(mutex_);
    if (!error_) error_ = std::current_exception();
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

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

/// Threads that sleep between runs. The caller works too, so `threads` − 1 of them are started, on first need.
class ThreadPool final : public Executor {
 public:
  ~ThreadPool() override { stop(); }

  int workers() const override {
    const int wanted = wanted_.load(std::memory_order_relaxed);
    if (wanted != 0) return wanted;
    const int from_environment = threads_from_environment();
    return from_environment != 0 ? from_environment : cpu::available_processors();
  }

  void set_threads(int threads) { wanted_.store(threads, std::memory_order_relaxed); }

  void run(int count, const std::function<void(int)>& body) override {
    // A body that calls back, or a second caller, must not wait for the pool it is using: it works alone.
    const std::unique_lock running(running_, std::try_to_lock);
    const int threads = std::min(workers(), count);
    if (inside_body() || !running.owns_lock() || threads <= 1) {
      serial_executor().run(count, body);
      return;
    }
    run_parallel(count, threads, body);
  }

 private:
  struct Job {
    Job(int tasks, const std::function<void(int)>& call) : count(tasks), body(call) {}

    const int count;
    const std::function<void(int)>& body;
    std::atomic<int> next{0};
    FirstError error;

    void work() {
      inside_body() = true;
      for (int i = next++; i < count; i = next++) {
        try {
          body(i);
        } catch (...) {
          error.capture();
        }
      }
      inside_body() = false;
    }
  };

  static bool& inside_body() {
    thread_local bool inside = false;
    return inside;
  }

  void run_parallel(int count, int threads, const std::function<void(int)>& body) {
    Job job(count, body);
    {
      const std::scoped_lock lock(mutex_);
      while (static_cast<int>(threads_.size()) < threads - 1) threads_.emplace_back([this] { serve(); });
      job_ = &job;
      seats_ = threads - 1;
    }
    wake_.notify_all();
    job.work();
    std::unique_lock lock(mutex_);
    job_ = nullptr;
    done_.wait(lock, [this] { return busy_ == 0; });
    job.error.rethrow();
  }

  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return stopping_ || (job_ != nullptr && seats_ > 0); });
      if (stopping_) return;
      Job* job = job_;
      --seats_;
      ++busy_;
      lock.unlock();
      job->work();
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }

  void stop() {
    {
      const std::scoped_lock lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  std::atomic<int> wanted_{0};
  std::mutex running_;  ///< held by the caller whose job runs
  std::mutex mutex_;    ///< guards what follows
  std::condition_variable wake_, done_;
  std::vector<std::thread> threads_;
  Job* job_ = nullptr;
  int seats_ = 0;
  int busy_ = 0;
  bool stopping_ = false;
};

ThreadPool& pool() {
  static ThreadPool instance;
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
