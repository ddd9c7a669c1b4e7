// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/command.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "flashmask/executor.h"
#include "flashmask/kernels.h"
#include "flashmask/linear_attention.h"
#include "run_command.h"

namespace flashmask::cli {
namespace {

namespace fs = std::filesystem;

TEST(Command, HelpAndVersionAreNoErrors) {
  const Outcome help = command({"--help"});
  EXPECT_EQ(help.status, 0);
  for (const char* name : {"attend", "show", "check", "partition", "score", "cache", "info"}) {
    EXPECT_NE(help.out.find(name), std::string::npos);
    EXPECT_EQ(command({name, "--help"}).status, 0);
  }
  EXPECT_EQ(command({"--version"}).out, "0.1.0\n");
}

TEST(Command, RefusesWhatItDoesNotKnow) {
  expect_refused({}, "give one of attend, show, check, partition, score, cache, info");
  expect_refused({"shwo"}, "did you mean show?");
  expect_refused({"show"}, "give a mask family");
  expect_refused({"show", "casual"}, "did you mean causal?");
  expect_refused({"show", "causal", "--nonsense"}, "--nonsense");
  expect_refused({"show", "causal", "--tokens", "many"}, "--tokens");
  expect_refused({"show", "causal", "--tokens", "99999999999999999999"}, "99999999999999999999 does not fit 64 bits");
  expect_refused({"show", "causal", "--tokens", "-99999999999999999999"}, "99999999999999999999 does not fit 64 bits");
  expect_refused({"show", "big_bird", "--seed", "-1"}, "--seed: -1 is negative");
  expect_refused({"attend", "--seed", "-1"}, "--seed: -1 is negative");
  expect_refused({"attend", "--seed", "99999999999999999999"}, "does not fit 64 bits");
  expect_refused({"attend", "--dropout", "0.1", "--dropout-offset", "-1"}, "--dropout-offset: -1 is negative");
  expect_refused({"check", "--mask", "nonsense"}, "no mask \"nonsense\"");
  expect_refused({"check", "--kernel", "nonsense"}, "\"nonsense\"");
  expect_refused({"attend", "--mask", "nonsense"}, "no mask family");
  expect_refused({"attend", "--device", "tpu"}, "expected cpu, cuda or cuda:N");
  expect_refused({"attend", "--device", "cuda:1x"}, "expected cpu, cuda or cuda:N");
  expect_refused({"attend", "--device", "cuda:99999999999"}, "expected cpu, cuda or cuda:N");
  expect_refused({"check", "--device", "cuda:99"}, "CUDA");
  expect_refused({"attend", "--dtype", "f64"}, "f32,bf16,f16");
  expect_refused({"attend", "--seqlen", "0"}, "--seqlen");
  expect_refused({"attend", "--heads", "3", "--kv-heads", "2"}, "kv_heads");
  expect_refused({"attend", "--seqlen", "2000000000", "--heads", "2000000000"}, "memory");
}

TEST(Command, OutputThatCannotBeWrittenIsAnError) {
  const std::vector<std::vector<std::string>> commands = {
      {"--help"},
      {"--version"},
      {"show", "--help"},
      {"info"},
      {"info", "--json"},
      {"show", "causal"},
      {"show", "causal", "--json"},
      {"partition", "causal", "--tokens", "256", "--ranks", "2"},
      {"check", "--quick", "--kernel", "scalar.forward.f32", "--mask", "full"},
      {"attend", "--seqlen", "256", "--heads", "1", "--no-dense"}};
  for (const std::vector<std::string>& arguments : commands) {
    std::ofstream full("/dev/full");  // takes no byte: "No space left on device"
    std::ostringstream err;
    Console console{.out = full, .err = err};
    EXPECT_EQ(run(arguments, console), 2) << arguments.front();
    EXPECT_NE(err.str().find("standard output could not be written"), std::string::npos) << arguments.front();
  }
}

TEST(Command, NamesTheOptionThatItDoesNotHave) {
  expect_refused({"attend", "--mask", "causal", "--tokens", "256"}, "not expected: 256 --tokens");
}

TEST(Command, RefusesPicturesOfAnotherKind) {
  for (const std::vector<std::string>& drawing :
       {std::vector<std::string>{"show", "causal"}, {"partition", "causal", "--ranks", "2"}, {"attend"}}) {
    const auto with = [&drawing](const char* option, const char* path) {
      std::vector<std::string> arguments = drawing;
      arguments.insert(arguments.end(), {option, path});
      return arguments;
    };
    expect_refused(with("--png", "a.jpg"), "--png: \"a.jpg\" does not end in .png");
    expect_refused(with("--png", ""), "--png: empty; give a value, or leave it out");
    if (drawing.front() == "attend") continue;
    expect_refused(with("--svg", "a.png"), "--svg: \"a.png\" does not end in .svg");
    expect_refused(with("--svg", ""), "--svg: empty");
  }
}

TEST(Info, ListsEveryKernelAndWhyOneCannotRun) {
  const auto info = command({"info", "--json"}).json();
  ASSERT_EQ(info["kernels"].size(), kernels().size());
  ASSERT_EQ(info["linear_kernels"].size(), linear_kernels().size());
  for (const auto& kernel : info["kernels"])
    EXPECT_EQ(kernel["runs"] == true, kernel["why_not"].get<std::string>().empty());
  const std::string text = command({"info", "--all"}).out;
  for (const KernelInfo& kernel : kernels()) EXPECT_NE(text.find(kernel.name), std::string::npos);
  for (const LinearKernelInfo& kernel : linear_kernels()) EXPECT_NE(text.find(kernel.name), std::string::npos);
  const std::size_t bits = text.find("kernels for masks as bits");
  EXPECT_LT(text.find("kernels for masks as intervals"), text.find("scalar.forward.f32.dany.m64n64.intervals"));
  EXPECT_LT(text.find("scalar.backward.f16.dany.m128n128.intervals"), bits);
  EXPECT_LT(bits, text.find("avx512.forward.f32.dany.m64n64.bits"));
}

TEST(Info, SaysWhereABuildHasNoCuda) {
  const std::vector<KernelInfo> all = kernels();
  const bool for_gpus =
      std::any_of(all.begin(), all.end(), [](const KernelInfo& info) { return info.device == DeviceType::cuda; });
  EXPECT_EQ(command({"info"}).out.find("none: this build has no CUDA") == std::string::npos, for_gpus);
}

TEST(Show, DrawsAndExplains) {
  const Outcome shown = command({"show", "causal_document", "--documents", "2,1"});
  EXPECT_EQ(shown.status, 0);
  EXPECT_EQ(shown.out.rfind("#..\n##.\n..#\n", 0), 0U);
  EXPECT_NE(shown.out.find("4 of 9"), std::string::npos);
  EXPECT_EQ(command({"show", "causal_document", "--documents", "2,1", "--no-explain"}).out, "#..\n##.\n..#\n\n");
}

TEST(Show, PrintsJson) {
  const auto json = command({"show", "causal", "--tokens", "128", "--tile", "64", "--json"}).json();
  EXPECT_EQ(json["visible_pairs"], 128 * 129 / 2);
  EXPECT_EQ(json["tiles"], nlohmann::json({{"skip", 1}, {"partial", 2}, {"full", 1}}));
}

TEST(Show, WritesPictures) {
  const fs::path png = fs::path(testing::TempDir()) / "show.png", svg = fs::path(testing::TempDir()) / "show.svg";
  EXPECT_EQ(command({"show", "tree", "--png", png.string(), "--svg", svg.string()}).status, 0);
  EXPECT_GT(fs::file_size(png), 1000U);
  EXPECT_GT(fs::file_size(svg), 1000U);
  fs::remove(png);
  fs::remove(svg);
}

TEST(Show, RefusesAPathBeforeItPrints) {
  expect_refused({"show", "causal", "--png", testing::TempDir() + "missing/a.png"}, "cannot be written");
  expect_refused({"show", "causal", "--head", "1"}, "heads 0 to 0");
}

TEST(Check, HoldsKernelsAgainstTheReference) {
  const Outcome checked = command({"check", "--quick", "--kernel", "scalar.", "--mask", "causal_document", "--json"});
  EXPECT_EQ(checked.status, 0);
  const auto verdicts = checked.json();
  EXPECT_EQ(verdicts.size(), 15U);  // two directions of three dtypes and two predicates, and linear attention
  for (const auto& verdict : verdicts) {
    EXPECT_TRUE(verdict["passes"] == true && verdict["cases"] == 1 && verdict["error_over_bound"] > 0) << verdict;
  }
}

TEST(Attend, TakesDocuments) {
  const Outcome outcome = command(
      {"attend", "causal_document", "--documents", "82,49,107,115", "--seqlen", "512", "--heads", "2", "--json"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const auto json = outcome.json();
  EXPECT_EQ(json["mask"]["visible_pairs"], (82 * 83 + 49 * 50 + 107 * 108 + 115 * 116) / 2);
  EXPECT_EQ(json["mask"]["dense_bytes"], 512 * 512);
  const auto without_padding = command({"attend", "document", "--documents", "30,40", "--no-dense", "--json"}).json();
  EXPECT_EQ(without_padding["problem"]["query_length"], 70);
  EXPECT_EQ(without_padding["mask"]["visible_pairs"], 30 * 30 + 40 * 40);
}

TEST(Attend, ChecksRowsAndColumnsAndTimesTheDenseMask) {
  const auto json = command({"attend", "--seqlen", "256", "--heads", "1", "--json"}).json();
  EXPECT_EQ(json["errors"]["passes"], true);
  EXPECT_GT(json["errors"]["rows"], 0);
  EXPECT_GT(json["errors"]["columns"], 0);
  EXPECT_GT(json["speed_up"], 0);
}

TEST(Attend, ServesEveryDtype) {
  for (const char* dtype : {"f32", "bf16", "f16"}) {
    const Outcome outcome = command({"attend", "--seqlen", "1000", "--heads", "2", "--kv-heads", "1", "--batch", "2",
                                     "--head-dim", "24", "--dtype", dtype, "--no-dense"});
    EXPECT_EQ(outcome.status, 0) << dtype << ": " << outcome.out << outcome.err;
    EXPECT_NE(outcome.out.find("passes"), std::string::npos);
  }
}

TEST(Attend, RefusesWhatItCannotRun) {
  expect_refused({"attend", "causal", "--documents", "3,4"}, "--documents means nothing to it");
  expect_refused({"attend", "causal_document", "--documents", "30,40", "--seqlen", "64"}, "64");
  expect_refused({"attend", "--seqlen", "512", "--png", testing::TempDir() + "missing/a.png"}, "cannot be written");
}

TEST(Attend, DrawsItsMask) {
  const fs::path png = fs::path(testing::TempDir()) / "attend.png";
  EXPECT_EQ(command({"attend", "--seqlen", "256", "--heads", "1", "--no-dense", "--png", png.string()}).status, 0);
  EXPECT_GT(fs::file_size(png), 1000U);
  fs::remove(png);
}

TEST(Attend, SetsTheThreads) {
  const auto json =
      command({"attend", "--seqlen", "64", "--heads", "1", "--no-dense", "--threads", "1", "--json"}).json();
  EXPECT_NE(json["device"].get<std::string>().find("1 threads"), std::string::npos) << json["device"];
  set_thread_count(0);
}

}  // namespace
}  // namespace flashmask::cli
