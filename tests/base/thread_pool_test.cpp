// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/available_processors.h"
#include "flashmask/attention.h"
#include "flashmask/builders.h"
#include "flashmask/error.h"
#include "flashmask/executor.h"
#include "flashmask/linear_attention.h"
#include "flashmask/startend_row_indices.h"
#include "kit/host_tensor.h"

namespace flashmask {
namespace {

class ThreadPool : public testing::Test {
 protected:
  ~ThreadPool() override {
    set_thread_count(0);
    unsetenv("FLASHMASK_THREADS");
  }
};

/// Each body waits for the others: they can only meet when `threads` run at once.
void meet(int threads) {
  std::atomic<int> arrived{0};
  default_executor().run(threads, [&](int) {
    ++arrived;
    while (arrived < threads) std::this_thread::yield();
  });
}

TEST_F(ThreadPool, CallsEveryBodyOnce) {
  set_thread_count(4);
  for (const int count : {0, 1, 3, 4, 5, 100}) {
    std::vector<std::atomic<int>> calls(100);
    default_executor().run(count, [&](int i) { ++calls[static_cast<std::size_t>(i)]; });
    for (int i = 0; i < 100; ++i) EXPECT_EQ(calls[static_cast<std::size_t>(i)], i < count ? 1 : 0);
  }
}

TEST_F(ThreadPool, UsesAsManyThreadsAsAsked) {
  set_thread_count(3);
  EXPECT_EQ(default_executor().workers(), 3);
  meet(3);
}

/// Runs `body` in a forked child that ends as a program does, and says how it ended: "exit status 0" when all is well.
template <class Body>
std::string end_of_child(const Body& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) return std::string("never began: ") + std::strerror(errno);
  if (child == 0) {
    body();
    std::exit(0);
  }
  int status = 0;
  const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > late) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return "still running after 30 seconds";
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return WIFEXITED(status) ? "exit status " + std::to_string(WEXITSTATUS(status))
                           : "signal " + std::to_string(WTERMSIG(status));
}

constexpr const char* kWell = "exit status 0";

TEST_F(ThreadPool, AForkedChildHasThreadsOfItsOwn) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer lets no child of several threads start threads";
#endif
  set_thread_count(3);
  meet(3);
  EXPECT_EQ(end_of_child([] { meet(3); }), kWell);
  EXPECT_EQ(end_of_child([] {}), kWell) << "a child that runs nothing ends";
  EXPECT_EQ(end_of_child([] {
              meet(3);
              if (end_of_child([] { meet(3); }) != kWell) _exit(1);
            }),
            kWell)
      << "a child of the child";
  meet(3);
}

TEST_F(ThreadPool, AChildForkedWhileThePoolWorksHasThreadsOfItsOwn) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer lets no child of several threads start threads";
#endif
  set_thread_count(3);
  std::atomic<bool> stop{false}, started{false};
  std::thread busy([&] {
    meet(3);
    started = true;
    while (!stop) default_executor().run(3, [](int) {});
  });
  // A thread that starts allocates, and a fork meanwhile leaves AddressSanitizer's allocator locked in the child.
  while (!started) std::this_thread::yield();
  for (int i = 0; i < 20 && !HasFailure(); ++i)
    EXPECT_EQ(end_of_child([] {
                meet(3);
                _exit(0);
              }),
              kWell);
  stop = true;
  busy.join();
}

TEST_F(ThreadPool, ThreadsThatCannotBeStartedMeanFewer) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer lets no child of several threads start threads";
#endif
  set_thread_count(4);
  EXPECT_EQ(end_of_child([] {
              pthread_attr_t attributes;  // a stack for which there is no room
              if (pthread_attr_init(&attributes) != 0) _exit(2);
              if (pthread_attr_setstacksize(&attributes, std::size_t{1} << 48) != 0) _exit(2);
              if (pthread_setattr_default_np(&attributes) != 0) _exit(2);
              std::atomic<int> calls{0};
              default_executor().run(100, [&](int) { ++calls; });
              if (calls != 100) _exit(1);
            }),
            kWell);
}

std::atomic<int> calling{0};

/// What is destroyed last, as it is made first, takes its time where others are calling then.
struct Slow {
  ~Slow() {
    if (calling > 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
};
const Slow slow_to_end;

/// Calls all that threads share: the pool, the tables of kernels, texts.
void call_for_ever() {
  const Problem p{.query_length = 200, .key_length = 200, .head_dim = 16, .value_dim = 16};
  const check::AttentionTensors tensors(p, 1);
  while (true) {
    const Mask mask = masks::causal_document({100, 90}, 200);
    forward(plan(mask, p), tensors.forward());
    (void)linear_plan(mask, {.length = 200, .key_dim = 16, .value_dim = 16});
    (void)from_startend_row_indices(std::vector<std::int32_t>(200, 200), {1, 1, 200, 200}, 1, true);
    ++calling;
  }
}

TEST_F(ThreadPool, TheProcessEndsWhileOtherThreadsCall) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer lets no child of several threads start threads";
#endif
  set_thread_count(3);
  for (int i = 0; i < 5 && !HasFailure(); ++i)
    EXPECT_EQ(end_of_child([] {
                for (int caller = 0; caller < 3; ++caller) std::thread(call_for_ever).detach();
                while (calling < 9) std::this_thread::yield();
              }),
              kWell);
}

TEST_F(ThreadPool, ANestedCallRunsOnItsCaller) {
  set_thread_count(4);
  std::atomic<int> calls{0};
  default_executor().run(4, [&](int) {
    const std::thread::id caller = std::this_thread::get_id();
    default_executor().run(5, [&](int) {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      ++calls;
    });
  });
  EXPECT_EQ(calls, 20);
}

TEST_F(ThreadPool, ConcurrentCallersAllFinish) {
  set_thread_count(2);
  std::atomic<int> calls{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller)
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 50; ++repeat) default_executor().run(7, [&](int) { ++calls; });
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(calls, 4 * 50 * 7);
}

TEST_F(ThreadPool, RethrowsABodysExceptionAndGoesOnWorking) {
  set_thread_count(2);
  for (Executor* executor : {&default_executor(), &serial_executor()}) {
    std::atomic<int> calls{0};
    const auto throws = [&](int i) {
      ++calls;
      if (i == 3) throw std::runtime_error("three");
    };
    EXPECT_THROW(executor->run(6, throws), std::runtime_error);
    EXPECT_EQ(calls, 6) << "the other bodies are still called";
    executor->run(2, [&](int) { ++calls; });
    EXPECT_EQ(calls, 8);
  }
}

TEST_F(ThreadPool, TakesTheEnvironmentVariableUnlessTheCountIsSet) {
  setenv("FLASHMASK_THREADS", "5", 1);
  EXPECT_EQ(default_executor().workers(), 5);
  set_thread_count(2);
  EXPECT_EQ(default_executor().workers(), 2);
  set_thread_count(0);
  for (const char* bad : {"zero", "0", "-1", "3x", "99999"}) {
    setenv("FLASHMASK_THREADS", bad, 1);
    EXPECT_THROW(default_executor().workers(), Error) << bad;
  }
  setenv("FLASHMASK_THREADS", "", 1);
  EXPECT_EQ(default_executor().workers(), available_processors());
}

TEST_F(ThreadPool, RefusesAnImpossibleCount) {
  EXPECT_THROW(set_thread_count(-1), Error);
  EXPECT_THROW(set_thread_count(1 << 20), Error);
}

TEST_F(ThreadPool, NeverTakesMoreProcessorsThanTheProcessMayUse) {
  EXPECT_GE(available_processors(), 1);
  EXPECT_LE(available_processors(), static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace
}  // namespace flashmask
