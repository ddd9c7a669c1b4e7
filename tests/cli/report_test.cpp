// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/report.h"

#include <unistd.h>

#include <fstream>

#include "flashmask/kernels.h"
#include "run_command.h"

namespace flashmask::cli {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(CheckReport, SaysWhatWasFoundAndNothingPersonal) {
  const std::string file = testing::TempDir() + "report.json";
  const Outcome outcome =
      command({"check", "--kernel", "scalar.forward.f32", "--mask", "causal", "--device", "cpu", "--report", file});
  EXPECT_EQ(outcome.status, 0) << outcome.err << outcome.out;
  EXPECT_NE(outcome.out.find("12 of 12 promises to the bit hold"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("--body-file " + file), std::string::npos) << outcome.out;
  const std::string text = text_of(file);
  const auto report = nlohmann::json::parse(text);
  EXPECT_EQ(report["report"], 1);
  EXPECT_EQ(report["kernels"].size(), 2U);  // of intervals and of bits
  EXPECT_EQ(report["kernels"][0]["cases"], 1);
  EXPECT_EQ(report["promises"].size(), 12U);
  EXPECT_EQ(report["machine"]["instruction_sets"], nlohmann::json(instruction_sets()));
  EXPECT_EQ(report["passes"], true);
  ASSERT_EQ(report["speed"].size(), 8U);
  for (const auto& row : report["speed"]) EXPECT_GT(row["milliseconds"], 0) << row;
  char host[256] = {};
  ASSERT_EQ(gethostname(host, sizeof host - 1), 0);
  EXPECT_EQ(text.find(host), std::string::npos) << host;
  EXPECT_EQ(text.find('/'), std::string::npos) << "a path is in it";
}

TEST(CheckReport, FailsWhereAKernelMissesOrAPromiseIsBroken) {
  const check::KernelVerdict passes{.kernel = "one", .cases = 3, .worst = 0.5, .where = ""};
  const check::KernelVerdict misses{.kernel = "two", .cases = 3, .worst = 1.5, .where = ""};
  const check::Promise kept{"the same bits", "cpu", DType::f32, true},
      broken{"the same bits", "cpu", DType::f32, false};
  EXPECT_EQ(json_of({{passes}, {kept}}, {})["passes"], true);
  EXPECT_EQ(json_of({{passes, misses}, {kept}}, {})["passes"], false);
  const auto report = json_of({{passes}, {kept, broken}}, {});
  EXPECT_EQ(report["passes"], false);
  EXPECT_EQ(report["promises"][1]["holds"], false);
}

TEST(CheckReport, IsRefusedWhereItCannotBeWrittenOrIsNotAllThatIsPrinted) {
  expect_refused({"check", "--report", "/nowhere/report.json"}, "/nowhere/report.json");
  expect_refused({"check", "--report", "report.json", "--json"}, "--json");
}

}  // namespace
}  // namespace flashmask::cli
