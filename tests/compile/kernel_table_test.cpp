// SPDX-License-Identifier: Apache-2.0
#include "cuda/compile/kernel_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <stdexcept>
#include <thread>

#include "cuda/compile/compile.h"

/// The table of compiled kernels of a process, with a compiler that is none.
namespace flashmask::cuda::compile {
namespace {

constexpr int kKernel = 0;

LoadedKernel compiled(const std::string& name = "f") {
  return {&kKernel, {.name = name, .origin = KernelOrigin::compiler, .spilled = 4, .compiler = "a compiler"}};
}

TEST(KernelTable, MakesAKernelOnceForAllThreads) {
  KernelTable table;
  std::atomic<int> made = 0, from_memory = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      const LoadedKernel found = table.find_or_make("key", [&] {
        ++made;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        return compiled();
      });
      EXPECT_EQ(found.kernel, &kKernel);
      EXPECT_EQ(found.made.spilled, 4);
      from_memory += found.made.origin == KernelOrigin::memory;
      EXPECT_EQ(found.made.seconds >= 0.02, found.made.origin == KernelOrigin::compiler);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made, 1);
  EXPECT_EQ(from_memory, 7);
}

/// Each waits for the other one inside of its compiler.
TEST(KernelTable, MakesTwoKernelsSideBySide) {
  KernelTable table;
  std::barrier both(2);
  const auto task = [&](const char* name) {
    return [&, name] {
      return table
          .find_or_make(name,
                        [&] {
                          both.arrive_and_wait();
                          return compiled(name);
                        })
          .made;
    };
  };
  const std::vector<CompiledKernel> made = side_by_side({task("forward"), task("backward")});
  ASSERT_EQ(made.size(), 2U);
  EXPECT_EQ(made[0].name, "forward");
  EXPECT_EQ(made[1].name, "backward");
  EXPECT_EQ(side_by_side({}).size(), 0U);
}

TEST(KernelTable, TriesAgainWhereMakingFailed) {
  KernelTable table;
  const auto fails = []() -> LoadedKernel { throw std::runtime_error("no compiler"); };
  EXPECT_THROW(table.find_or_make("key", fails), std::runtime_error);
  EXPECT_EQ(table.find_or_make("key", [] { return compiled(); }).made.origin, KernelOrigin::compiler);
}

TEST(BestCode, IsTheFirstThatSpillsLittleOrTheOneThatSpillsLeast) {
  const auto best = [](std::vector<int> spills) {
    std::vector<std::string> names, asked;
    for (std::size_t i = 0; i < spills.size(); ++i) names.push_back(std::to_string(i));
    const auto [found, name] = best_code({"", names}, [&](const std::string& each) {
      asked.push_back(each);
      Code code;
      code.spilled = spills[std::stoul(each)];
      return FoundCode{code, KernelOrigin::disk};
    });
    EXPECT_EQ(found.code.spilled, spills[std::stoul(name)]);
    return name + " of " + std::to_string(asked.size());
  };
  EXPECT_EQ(best({8, 0}), "0 of 1");
  EXPECT_EQ(best({40, 16, 0}), "1 of 2");
  EXPECT_EQ(best({40, 24, 60}), "1 of 3");
}

TEST(SideBySide, ThrowsWhatTheFirstThrowsOnceAllHaveEnded) {
  std::atomic<int> ended = 0;
  const auto fails = [](const char* why) { return [why]() -> CompiledKernel { throw std::runtime_error(why); }; };
  const auto takes_long = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ++ended;
    return CompiledKernel();
  };
  try {
    side_by_side({takes_long, fails("the first"), takes_long, fails("the second")});
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "the first");
  }
  EXPECT_EQ(ended, 2);
}

}  // namespace
}  // namespace flashmask::cuda::compile
