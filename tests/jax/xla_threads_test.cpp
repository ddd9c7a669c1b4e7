// SPDX-License-Identifier: Apache-2.0
#include "jax/xla_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/bodies.h"
#include "jax/fake_xla.h"

namespace flashmask::jax {
namespace {

/// Runs `count` bodies on XLA's threads, and expects each to be called once.
void expect_each_once(XLA_FFI_ExecutionContext& context, int count, int workers) {
  std::vector<std::atomic<int>> calls(static_cast<std::size_t>(count));
  FakeCall(context).with_frame([&](XLA_FFI_CallFrame& frame) {
    XlaThreads threads{Frame(frame)};
    EXPECT_EQ(threads.executor().workers(), workers);
    threads.executor().run(count, [&](int i) { ++calls[static_cast<std::size_t>(i)]; });
  });
  for (int i = 0; i < count; ++i) EXPECT_EQ(calls[static_cast<std::size_t>(i)], 1) << i;
}

TEST(XlaThreads, CallEachBodyOnce) {
  for (const int count : {0, 1, 2, 3, 4, 5, 100}) {
    XLA_FFI_ExecutionContext context;
    expect_each_once(context, count, 4);
    EXPECT_LE(context.threads.size(), 3U);  // the caller is the fourth
  }
}

TEST(XlaThreads, DoWithoutAPoolOrATask) {
  XLA_FFI_ExecutionContext none{.thread_count = 0}, refusing{.refuses_tasks = true};
  expect_each_once(none, 10, 1);
  expect_each_once(refusing, 10, 4);
}

// All of XLA's threads may be busy with calls that wait like this one.
TEST(XlaThreads, DoNotWaitForHelpersThatHaveNotBegun) {
  XLA_FFI_ExecutionContext context{.holds_tasks_back = true};
  expect_each_once(context, 10, 4);
  EXPECT_EQ(context.held.size(), 3U);
  context.release_all();  // they find nothing left to do, and free what they share
}

TEST(XlaThreads, PassExceptionsOn) {
  XLA_FFI_ExecutionContext context;
  FakeCall(context).with_frame([](XLA_FFI_CallFrame& frame) {
    XlaThreads threads{Frame(frame)};
    EXPECT_THROW(run_bodies(threads.executor(), 8,
                            [](int i) {
                              if (i == 5) throw std::runtime_error("five");
                            }),
                 std::runtime_error);
  });
}

TEST(XlaThreads, ServeSeveralCallsAtOnce) {
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([] {
      XLA_FFI_ExecutionContext context;
      expect_each_once(context, 50, 4);
    });
  for (std::thread& caller : callers) caller.join();
}

}  // namespace
}  // namespace flashmask::jax
