// SPDX-License-Identifier: Apache-2.0
#include "cli/base/progress_bar.h"

#include <gtest/gtest.h>

#include <sstream>
#include <thread>

namespace flashmask::cli {
namespace {

using namespace std::chrono_literals;

constexpr const char* kClearLine = "\r\x1b[K";

/// What a bar with one of four steps done writes to standard error in so long a time.
std::string drawn_in(std::chrono::milliseconds time, bool terminal, double expected_seconds = 0) {
  std::ostringstream out, err;
  Console console{.out = out, .err = err};
  console.progress = terminal;
  {
    ProgressBar bar(console, 4);
    bar.begin("first");
    bar.begin("second", 2, expected_seconds);
    std::this_thread::sleep_for(time);
  }
  EXPECT_EQ(out.str(), "");
  return err.str();
}

TEST(ProgressBar, SaysWhatIsDoneAfterASecondAndLeavesNoTrace) {
  const std::string drawn = drawn_in(1300ms, true);
  EXPECT_NE(drawn.find("25 %  1 s  second"), std::string::npos) << drawn;
  EXPECT_EQ(drawn.substr(drawn.size() - 4), kClearLine);
}

TEST(ProgressBar, MovesByItselfWhenTheTimeIsKnown) {
  EXPECT_NE(drawn_in(1300ms, true, 0.001).find("74 %"), std::string::npos);  // 99 % of two steps of four
}

TEST(ProgressBar, IsSilentWithoutATerminal) { EXPECT_EQ(drawn_in(1300ms, false), ""); }

TEST(ProgressBar, IsSilentForShortWork) { EXPECT_EQ(drawn_in(10ms, true), ""); }

}  // namespace
}  // namespace flashmask::cli
