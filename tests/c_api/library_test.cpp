// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <thread>

#include "c_api/handles.h"
#include "flashmask/executor.h"

namespace flashmask::c_api {
namespace {

TEST(Library, SaysTheVersionOfItsHeader) {
  const std::string header = std::to_string(FLASHMASK_VERSION_MAJOR) + "." + std::to_string(FLASHMASK_VERSION_MINOR) +
                             "." + std::to_string(FLASHMASK_VERSION_PATCH);
  EXPECT_EQ(flashmask_version(), header);
}

TEST(Library, SetsTheThreadsOfTheDefaultExecutor) {
  ASSERT_EQ(flashmask_set_thread_count(3), FLASHMASK_OK);
  EXPECT_EQ(default_executor().workers(), 3);
  ASSERT_EQ(flashmask_set_thread_count(0), FLASHMASK_OK);
  expect_refused(flashmask_set_thread_count(-2), FLASHMASK_INVALID_ARGUMENT, "threads is -2");
}

TEST(LastError, BelongsToTheThreadThatFailed) {
  EXPECT_EQ(flashmask_set_thread_count(-7), FLASHMASK_INVALID_ARGUMENT);
  std::thread([] {
    EXPECT_STREQ(flashmask_last_error(), "");
    EXPECT_EQ(flashmask_set_thread_count(-8), FLASHMASK_INVALID_ARGUMENT);
  }).join();
  EXPECT_NE(std::string(flashmask_last_error()).find("-7"), std::string::npos);
}

TEST(LastError, OutlivesCallsThatSucceed) {
  EXPECT_EQ(flashmask_set_thread_count(-7), FLASHMASK_INVALID_ARGUMENT);
  EXPECT_EQ(flashmask_set_thread_count(0), FLASHMASK_OK);
  EXPECT_NE(std::string(flashmask_last_error()).find("-7"), std::string::npos);
}

}  // namespace
}  // namespace flashmask::c_api
