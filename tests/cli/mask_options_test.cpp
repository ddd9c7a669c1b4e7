// SPDX-License-Identifier: Apache-2.0
// Masks from files, reordering and dropout, as a person asks the command for them.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "cli/pictures/png_canvas.h"
#include "flashmask/block_map.h"
#include "flashmask/builders.h"
#include "flashmask/executor.h"
#include "flashmask/kernels.h"
#include "npy_bytes.h"
#include "run_command.h"

namespace flashmask::cli {
namespace {

namespace fs = std::filesystem;

/// Files of the running test, which may run beside others; gone after it.
class MaskOptions : public testing::Test {
 public:
  MaskOptions()
      : folder_(fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::create_directories(folder_);
  }
  ~MaskOptions() override { fs::remove_all(folder_); }
  MaskOptions(const MaskOptions&) = delete;
  MaskOptions& operator=(const MaskOptions&) = delete;

 protected:
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  /// One head of one batch entry.
  std::string write(const std::string& name, const Mask& mask) const {
    return write(name, npy("|b1", rows_columns(mask), dense_bytes(mask)));
  }
  std::string write_map(const std::string& name, const std::string& shape, const std::vector<int>& keep) const {
    return write(name, npy("|u1", shape, elements<std::uint8_t>(keep)));
  }

  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

 private:
  fs::path folder_;
};

using ShowOptions = MaskOptions;
using CheckOptions = MaskOptions;
using AttendOptions = MaskOptions;

const std::vector<std::int64_t> kDocuments = {20, 7, 30};

Mask documents() { return masks::causal_document(kDocuments, 60); }

/// Fits no intervals.
Mask scattered(std::int64_t rows, std::int64_t columns) {
  return from_predicate({1, 1, rows, columns},
                        [](auto, auto, std::int64_t i, std::int64_t j) { return (i * 7 + j * j) % 5 < 2; });
}

/// A band whose tokens were renamed.
Mask scrambled_band(std::int64_t tokens) {
  return from_predicate({1, 1, tokens, tokens}, [tokens](auto, auto, std::int64_t i, std::int64_t j) {
    return std::abs(i * 77 % tokens - j * 77 % tokens) <= 4;  // 77 shares no factor with a power of two
  });
}

nlohmann::json without_names(nlohmann::json json) {
  json.erase("mask");
  return json;
}

TEST_F(ShowOptions, DrawsADenseFileAsItsBuilder) {
  const std::string file = write("m.npy", documents());
  const std::vector<std::string> built = {"show", "causal_document", "--documents", "20,7,30", "--tokens", "60"};
  const auto with = [](std::vector<std::string> arguments, const std::string& more) {
    arguments.push_back(more);
    return command(std::move(arguments));
  };
  EXPECT_EQ(with({"show", file}, "--no-explain").out, with(built, "--no-explain").out);
  EXPECT_EQ(without_names(with({"show", "--mask", file}, "--json").json()),
            without_names(with(built, "--json").json()));
  EXPECT_EQ(with({"show", file}, "--json").json()["mask"], "m.npy");
}

TEST_F(ShowOptions, DrawsThePackedBitsOfAFile) {
  const std::string file = write("bits.npy", npy("|u1", "(3, 2)", std::string("\x05\x02\xFF\x03\x00\xFC", 6)));
  EXPECT_EQ(command({"show", file, "--packed-columns", "10", "--no-explain"}).out,
            "#.#......#\n##########\n.........."
            "\n\n");
}

TEST_F(ShowOptions, DrawsTheHeadAndTheBatchEntryAskedFor) {
  const std::string file = write("m.npy", npy("|b1", "(2, 2, 1, 3)", std::string("\1\0\0\0\1\0\0\0\1\1\1\1", 12)));
  EXPECT_EQ(command({"show", file, "--no-explain"}).out, "#..\n\n");
  EXPECT_EQ(command({"show", file, "--head", "1", "--no-explain"}).out, ".#.\n\n");
  EXPECT_EQ(command({"show", file, "--batch", "1", "--no-explain"}).out, "..#\n\n");
  EXPECT_EQ(command({"show", file, "--batch", "1", "--head", "1", "--no-explain"}).out, "###\n\n");
  expect_refused({"show", file, "--head", "2"}, "--head is 2; the mask has heads 0 to 1");
  expect_refused({"show", file, "--batch", "2"}, "--batch is 2; the mask has batch entries 0 to 1");
}

TEST_F(ShowOptions, ReadsPicturesWhereBlackIsMasked) {
  PngCanvas canvas(3, 2);
  canvas.fill({0, 0, 3, 2}, {0, 0, 0});
  canvas.fill({1, 0, 1, 2}, {255, 255, 255});
  const std::string file = write("m.png", canvas.encode());
  EXPECT_EQ(command({"show", "--mask-png", file, "--no-explain"}).out, ".#.\n.#.\n\n");
}

TEST_F(ShowOptions, WritesPicturesOfBits) {
  const std::string file = write("m.npy", scattered(40, 70));
  EXPECT_EQ(command({"show", file, "--png", path("p.png"), "--svg", path("p.svg")}).status, 0);
  EXPECT_GT(fs::file_size(path("p.png")), 1000U);
  EXPECT_GT(fs::file_size(path("p.svg")), 1000U);
}

TEST_F(ShowOptions, KeepsTheBlocksOfAMap) {
  const std::string map = write_map("map.npy", "(2, 2)", {1, 0, 1, 1});
  const Mask blocks = from_block_map({{1, 1, 30, 30}, 16, std::vector<std::uint8_t>{1, 0, 1, 1}});
  const auto pairs = [](const std::vector<std::string>& arguments) {
    return command(arguments).json()["visible_pairs"];
  };
  EXPECT_EQ(pairs({"show", "--block-map", map, "--block", "16", "--json"}), 3 * 16 * 16);
  EXPECT_EQ(pairs({"show", "--block-map", map, "--block", "16", "--tokens", "30", "--json"}), 30 * 30 - 16 * 14);
  EXPECT_EQ(pairs({"show", "causal", "--block-map", map, "--block", "16", "--tokens", "30", "--json"}), 30 * 31 / 2);
  const std::string dense = write("m.npy", masks::full(30, 30));
  EXPECT_EQ(pairs({"show", dense, "--block-map", map, "--block", "16", "--json"}), 30 * 30 - 16 * 14);
  EXPECT_EQ(command({"show", write("blocks.npy", blocks), "--no-explain"}).out,
            command({"show", "--block-map", map, "--block", "16", "--tokens", "30", "--no-explain"}).out);
}

TEST_F(ShowOptions, SharesBlockBetweenAFamilyAndAMap) {
  const std::string map = write_map("map.npy", "(4, 4)", std::vector<int>(16, 1));
  const auto shown =
      command({"show", "block_diffusion", "--tokens", "64", "--block-map", map, "--block", "16", "--json"});
  EXPECT_EQ(shown.json()["visible_pairs"],
            command({"show", "block_diffusion", "--tokens", "64", "--block", "16", "--json"}).json()["visible_pairs"]);
}

TEST_F(ShowOptions, TakesTheFormAskedFor) {
  const auto form = [](const std::vector<std::string>& arguments) { return command(arguments).json()["form"]; };
  EXPECT_EQ(form({"show", "causal", "--json"}), "intervals");
  EXPECT_EQ(form({"show", "causal", "--form", "bits", "--json"}), "bits");
  const std::string file = write("m.npy", scattered(64, 64));
  EXPECT_EQ(form({"show", file, "--json"}), "bits");
  EXPECT_NE(command({"show", file}).out.find("bits: column "), std::string::npos);
  expect_refused({"show", file, "--form", "intervals"}, "intervals were asked for, but in m.npy column ");
}

TEST_F(ShowOptions, SaysWhatReorderingSaves) {
  const std::string file = write("m.npy", scrambled_band(256));
  const auto json = command({"show", file, "--reorder", "--tile", "16", "--json"}).json();
  EXPECT_EQ(json["reordering"]["taken"], true);
  EXPECT_EQ(json["reordering"]["tiles_after"], json["tiles"]["partial"]);
  EXPECT_LT(json["reordering"]["tiles_after"], 64);
  EXPECT_GT(json["reordering"]["tiles_before"], 100);
  EXPECT_EQ(json["visible_pairs"], command({"show", file, "--json"}).json()["visible_pairs"]);
  const std::string after = std::to_string(json["reordering"]["tiles_after"].get<int>());
  const std::string before = std::to_string(json["reordering"]["tiles_before"].get<int>());
  EXPECT_NE(command({"show", file, "--reorder", "--tile", "16"}).out.find(after + " of " + before), std::string::npos);
}

TEST_F(ShowOptions, SaysWhyItDoesNotReorder) {
  const Outcome shown = command({"show", "causal", "--tokens", "64", "--reorder"});
  EXPECT_NE(shown.out.find("reordering         not taken: "), std::string::npos) << shown.out;
  EXPECT_EQ(shown.out.rfind(command({"show", "causal", "--tokens", "64", "--no-explain"}).out, 0), 0U);
}

TEST_F(ShowOptions, CountsTilesThatBeginWhereDocumentsBegin) {
  const std::vector<std::string> show = {"show", "causal_document", "--documents", "100,100", "--tile",
                                         "128",  "--json"};
  EXPECT_EQ(command(show).json()["tiles"]["partial"], 3);
  std::vector<std::string> invariant = show;
  invariant.emplace_back("--invariant");
  const auto json = command(invariant).json();
  EXPECT_EQ(json["invariant"], true);
  EXPECT_EQ(json["tiles"]["partial"], 2);
  expect_refused({"show", "causal", "--tokens", "64", "--tile", "5", "--invariant"},
                 "give sides that divide 128, or 192");
}

TEST_F(ShowOptions, RefusesWhatNoPlanTakes) {
  expect_refused({"show", "causal", "--invariant", "--reorder"}, "show: --invariant and --reorder; a plan takes one");
  expect_refused({"show", "causal", "--dropout", "0.1", "--reorder"},
                 "show: --dropout and --reorder; a plan takes one");
}

TEST_F(ShowOptions, BlamesNoFileForTheEnvironment) {
  const std::string file = write("m.npy", documents());
  set_thread_count(0);
  setenv("FLASHMASK_THREADS", "0", 1);
  expect_refused({"show", file}, "flashmask: FLASHMASK_THREADS is \"0\"; expected a number from 1 to");
  unsetenv("FLASHMASK_THREADS");
}

TEST_F(ShowOptions, DrawsWhatSurvivesDropout) {
  const std::vector<std::string> asked = {"show", "full", "--tokens", "60", "--dropout", "0.25", "--seed", "3"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = asked;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return command(arguments);
  };
  const auto json = with({"--json"}).json();
  const std::string picture = with({"--no-explain"}).out;
  EXPECT_EQ(json["dropout"]["dropped_pairs"], std::count(picture.begin(), picture.end(), '.'));
  EXPECT_NEAR(json["dropout"]["dropped_pairs"].get<double>() / 3600, 0.25, 0.05);
  EXPECT_EQ(json["visible_pairs"], 3600);
  EXPECT_EQ(with({"--no-explain"}).out, picture);
  EXPECT_NE(with({"--dropout-offset", "1", "--no-explain"}).out, picture);
  EXPECT_NE(with({}).out.find("0.25, seed 3, offset 0: "), std::string::npos);
}

TEST_F(ShowOptions, RefusesWhatIsNoMask) {
  const std::string file = write("m.npy", documents()), png = write("m.png", "hello");
  const std::string good = write("good.png", PngCanvas(2, 2).encode());
  expect_refused({"show", path("missing.npy")}, "missing.npy: cannot be read: ");
  expect_refused({"show", "mask.png"}, "a FILE.npy from numpy.save; a picture goes to --mask-png");
  expect_refused({"check", "--mask", "mask.npz"}, "--mask is \"mask.npz\"; expected the name of a mask, or a FILE.npy");
  expect_refused({"show", write("float.npy", npy("<f4", "(1, 1)", "xxxx"))}, "float.npy: dtype '<f4'");
  expect_refused({"show", write("cut.npy", npy("|b1", "(2, 2)", "x"))}, "cut.npy: cut off");
  expect_refused({"show", "--mask-png", png}, "m.png: no PNG file");
  expect_refused({"show", "--mask-png", file}, "m.npy: no PNG file");
  expect_refused({"show", file, "--mask-png", good}, "m.npy and --mask-png; give one mask");
  expect_refused({"show", file, "--window", "3"}, "--window means nothing to m.npy");
  expect_refused({"show", file, "--tokens", "60"}, "--tokens means nothing to m.npy");
  expect_refused({"show", "causal", "--packed-columns", "60"}, "no such file was given");
  expect_refused({"show", file, "--packed-columns", "0"}, "--packed-columns");
  EXPECT_EQ(command({"show", "causal", "--dropout", "0.99999"}).status, 0);
  expect_refused({"show", "causal", "--dropout", "0.999999"}, "dropout is 0.999999; expected a probability from 0 to");
  expect_refused({"show", "causal", "--dropout", "1"}, "expected a probability from 0 to 0.99999");
  expect_refused({"show", "causal", "--dropout", "-0.1"}, "expected a probability from 0 to 0.99999");
  expect_refused({"show", "causal", "--dropout", "nan"}, "expected a probability from 0 to 0.99999");
  expect_refused({"show", "causal", "--form", "dense"}, "--form");
}

TEST_F(ShowOptions, RefusesMapsThatDoNotFit) {
  const std::string map = write_map("map.npy", "(2, 2)", {1, 0, 1, 1});
  expect_refused({"show", "--block-map", map}, "--block-map needs --block");
  expect_refused({"show", "causal", "--tokens", "60", "--block-map", map, "--block", "16"},
                 "map.npy: 2 blocks of rows; 60 rows in blocks of 16 take 4");
  expect_refused({"show", "--block-map", map, "--block", "24"}, "multiple of 16");
  expect_refused({"show", "--block-map", write_map("two.npy", "(1, 1)", {2}), "--block", "16"}, "two.npy: ");
  expect_refused({"show", "causal", "--block", "16"}, "--block means nothing to it");
  expect_refused({"attend", "--block", "16"}, "--block is the side of a block of --block-map, which was not given");
}

TEST_F(CheckOptions, RunsEveryKernelOnAFile) {
  const std::string file = write("m.npy", scattered(70, 90));
  const auto verdicts = command({"check", "--mask", file, "--kernel", "scalar.", "--json"}).json();
  ASSERT_EQ(verdicts.size(), 15U);  // two directions of three dtypes and two predicates, and linear attention
  for (const auto& verdict : verdicts) {
    const bool bits = verdict["kernel"].get<std::string>().ends_with(".bits");
    EXPECT_EQ(verdict["cases"], bits ? 2 : 0) << verdict;
    EXPECT_EQ(verdict["passes"], true) << verdict;
    EXPECT_EQ(verdict["where"].get<std::string>().find("m.npy 70 × 90") != std::string::npos, bits);
  }
}

TEST_F(CheckOptions, RunsBothPredicatesWhereIntervalsFit) {
  const std::string file = write("m.npy", documents());
  for (const auto& verdict :
       command({"check", "--mask", file, "--kernel", "scalar.forward", "--quick", "--json"}).json()) {
    EXPECT_TRUE(verdict["cases"] == 1 && verdict["passes"] == true && verdict["error_over_bound"] > 0) << verdict;
  }
}

TEST_F(CheckOptions, TakesHeadsBatchesAndPictures) {
  const std::string scores = dense_bytes(scattered(40, 40)) + dense_bytes(masks::causal(40, 40));
  PngCanvas canvas(30, 20);
  canvas.fill({5, 5, 10, 10}, {255, 255, 255});
  const std::string png = write("m.png", canvas.encode());
  for (const std::vector<std::string>& mask :
       {std::vector<std::string>{"--mask", write("heads.npy", npy("|b1", "(2, 40, 40)", scores))},
        {"--mask", write("batch.npy", npy("|b1", "(2, 1, 40, 40)", scores))},
        {"--mask-png", png},
        {"--block-map", write_map("map.npy", "(2, 3)", {1, 0, 1, 0, 1, 0}), "--block", "16"}}) {
    std::vector<std::string> arguments = {"check", "--kernel", "scalar.", "--json"};
    arguments.insert(arguments.end(), mask.begin(), mask.end());
    const Outcome outcome = command(arguments);
    EXPECT_EQ(outcome.status, 0) << mask[1] << outcome.err;
    EXPECT_NE(outcome.out.find("\"cases\": 2"), std::string::npos) << mask[1];
  }
}

TEST_F(CheckOptions, HoldsDropoutAndReorderingAgainstTheReference) {
  const std::string file = write("m.npy", scrambled_band(256));
  const Outcome dropped = command({"check", "--mask", file, "--kernel", "scalar.", "--dropout", "0.3", "--seed", "9",
                                   "--dropout-offset", "4", "--quick"});
  EXPECT_EQ(dropped.status, 0) << dropped.out;
  EXPECT_NE(dropped.out.find("dropout 0.3, seed 9, offset 4"), std::string::npos);
  const Outcome reordered = command({"check", "--mask", file, "--kernel", "scalar.", "--reorder", "--quick"});
  EXPECT_EQ(reordered.status, 0) << reordered.out;
  expect_refused({"check", "--mask", file, "--dropout", "0.1", "--reorder"}, "a plan takes one of them");
}

TEST_F(CheckOptions, HoldsInvariantPlansAgainstTheReference) {
  const Outcome outcome = command({"check", "--mask", "causal_document", "--kernel", "scalar.", "--invariant"});
  EXPECT_EQ(outcome.status, 0) << outcome.out;
  EXPECT_NE(outcome.out.find("passes"), std::string::npos) << outcome.out;
  expect_refused({"check", "--invariant", "--reorder"}, "a plan takes one of them");
}

TEST_F(CheckOptions, TakeKernelsOfLinearAttentionWhereTheyHaveWhatIsAsked) {
  const Outcome outcome =
      command({"check", "--mask", "causal_document", "--kernel", "scalar.linear.f32", "--invariant", "--quick"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("passes"), std::string::npos) << outcome.out;
  for (const std::vector<std::string>& lacking : {std::vector<std::string>{"--reorder"}, {"--dropout", "0.1"}}) {
    std::vector<std::string> arguments = {"check", "--kernel", "scalar.linear"};
    arguments.insert(arguments.end(), lacking.begin(), lacking.end());
    expect_refused(arguments, "\"scalar.linear\" names kernels of linear attention, which has no dropout");
  }
}

TEST_F(CheckOptions, RefusesMasksOfOneSizeForTheCorpus) {
  const std::string map = write_map("map.npy", "(2, 2)", {1, 0, 1, 1});
  expect_refused({"check", "--mask", "causal", "--block-map", map, "--block", "16"}, "--mask causal is of the corpus");
  expect_refused({"check", "--mask", "causal", "--mask-png", "a.png"}, "--mask causal is of the corpus");
  expect_refused({"check", "--mask", path("missing.npy")}, "missing.npy: cannot be read");
  expect_refused({"check", "--mask", write("m.npy", documents()), "--dropout", "1.5"},
                 "expected a probability from 0 to 0.99999");
}

TEST_F(AttendOptions, RunsOneSequenceWithAFile) {
  const std::string file = write("m.npy", scattered(300, 200));
  const Outcome outcome = command({"attend", "--mask", file, "--heads", "2", "--head-dim", "16", "--json"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const auto json = outcome.json();
  EXPECT_EQ(json["problem"]["batch"], 1);
  EXPECT_EQ(json["problem"]["query_length"], 300);
  EXPECT_EQ(json["problem"]["key_length"], 200);
  EXPECT_EQ(json["mask"]["mask"], "m.npy");
  EXPECT_EQ(json["mask"]["form"], "bits");
  EXPECT_EQ(json["errors"]["passes"], true);
  EXPECT_GT(json["errors"]["columns"], 0);
  EXPECT_GT(json["speed_up"], 0);
}

TEST_F(AttendOptions, ChecksHeadsBatchesFormsAndBlockMaps) {
  const std::string scores = dense_bytes(scattered(160, 160)) + dense_bytes(masks::causal(160, 160));
  const std::string map = write_map("map.npy", "(2, 2, 2)", {1, 0, 1, 1, 1, 0, 0, 1});
  const std::string heads = write("heads.npy", npy("|b1", "(2, 160, 160)", scores));
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--mask", heads, "--heads", "4", "--kv-heads", "2"},
        {"--mask", heads, "--heads", "2", "--kv-heads", "1"},
        {"--mask", write("batch.npy", npy("|b1", "(2, 1, 160, 160)", scores))},
        {"--mask", "causal", "--seqlen", "160", "--form", "bits", "--batch", "2"},
        {"--mask", "causal", "--seqlen", "160", "--block-map", map, "--block", "80", "--heads", "2"},
        {"--seqlen", "160", "--batch", "2", "--block-map", map, "--block", "80", "--heads", "4", "--kv-heads", "2"},
        {"--mask", write("band.npy", scrambled_band(512)), "--reorder"}}) {
    std::vector<std::string> arguments = {"attend", "--head-dim", "16", "--no-dense"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = command(arguments);
    EXPECT_EQ(outcome.status, 0) << more[1] << outcome.out << outcome.err;
    EXPECT_NE(outcome.out.find("passes"), std::string::npos) << more[1];
  }
}

TEST_F(AttendOptions, SaysWhatReorderingSavesAndDrawsIt) {
  const std::string file = write("band.npy", scrambled_band(512));
  const auto json =
      command({"attend", "--mask", file, "--heads", "1", "--no-dense", "--reorder", "--png", path("p.png"), "--json"})
          .json();
  EXPECT_EQ(json["reordering"]["taken"], true);
  EXPECT_EQ(json["reordering"]["tiles_before"], 64);
  EXPECT_EQ(json["reordering"]["tiles_after"], json["mask"]["tiles"]["partial"]);
  EXPECT_GT(fs::file_size(path("p.png")), 1000U);
}

TEST_F(AttendOptions, RepeatsDropoutFromItsSeedAndOffset) {
  const std::vector<std::string> asked = {"attend",           "--seqlen",  "256", "--heads", "2",
                                          "--no-dense",       "--dropout", "0.2", "--seed",  "5",
                                          "--dropout-offset", "8"};
  const Outcome outcome = command(asked);
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find("dropout        0.2, seed 5, offset 8\n"), std::string::npos) << outcome.out;
  std::vector<std::string> as_json = asked;
  as_json.emplace_back("--json");
  const auto first = command(as_json).json(), second = command(as_json).json();
  const nlohmann::json expected = {{"probability", 0.2}, {"seed", 5}, {"offset", 8}};
  EXPECT_EQ(first["dropout"], expected);
  EXPECT_EQ(first["errors"], second["errors"]);
}

TEST_F(AttendOptions, RefusesWhatContradictsItself) {
  const std::string file = write("m.npy", documents());
  expect_refused({"attend", "--mask", file, "--seqlen", "100"},
                 "--seqlen is 100, but m.npy has 60 rows; leave --seqlen");
  expect_refused({"attend", file, "--documents", "30,30"}, "--documents means nothing to m.npy");
  expect_refused({"attend", "--mask", file, "--mask-png", file}, "m.npy and --mask-png; give one mask");
  expect_refused({"attend", "--mask-png", file}, "m.npy: no PNG file");
  expect_refused({"attend", "--mask", write("s.npy", scattered(96, 96)), "--form", "intervals"},
                 "intervals were asked for");
  expect_refused({"attend", "--mask", "casual"}, "did you mean causal?");
  expect_refused({"attend", "--mask", file, "--reorder", "--dropout", "0.1"}, "reorder and dropout");
  expect_refused({"attend", "--mask", write("heads.npy", npy("|b1", "(3, 1, 1)", "\1\1\1")), "--heads", "4"},
                 "3 heads");
}

TEST_F(AttendOptions, LeavesNoPictureBehindWhenTheMaskIsRefused) {
  const std::string file = write("m.npy", npy("|u1", "(1, 2)", "\1\2"));
  expect_refused({"attend", "--mask", file, "--png", path("p.png")}, "m.npy: ");
  expect_refused({"show", file, "--png", path("p.png")}, "m.npy: ");
  EXPECT_EQ(files(), 1U);
}

}  // namespace
}  // namespace flashmask::cli
