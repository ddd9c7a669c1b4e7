// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "cuda/compile/change_text.h"
#include "cuda/compile/compile.h"
#include "flashmask/score_report.h"
#include "source_folder.h"

/// Compiles the changes of scores of tests/scores/catalogue.txt, without a GPU, and holds what their kernels take to
/// the numbers recorded there. FLASHMASK_CATALOGUE=all compiles every kernel, not only those with a star; =record also
/// writes what it finds into the file.
namespace flashmask::cuda::compile {
namespace {

/// What a kernel takes.
struct Taken {
  int spilled = 0;       ///< bytes per thread
  std::size_t code = 0;  ///< bytes
};

struct Case {
  std::string change, name, kernel;
  Taken limit;

  friend void PrintTo(const Case& of, std::ostream* out) { *out << of.change << " as " << of.kernel; }
};

/// otherwise: the shape that is taken where the first one spills, if there is one.
struct Kernel {
  const char *headers, *name, *otherwise = nullptr;

  bool of_hopper() const { return std::string(name).starts_with("sm90::"); }
};

const std::map<std::string, Kernel>& kernels() {
  static constexpr const char *kForward = "#include \"cuda/sm80/forward/forward_kernel.cuh\"\n",
                              *kBackward =
                                  "#include \"cuda/sm80/backward/column_kernel.cuh\"\n"
                                  "#include \"cuda/sm80/backward/shapes.cuh\"\n",
                              *kHopperForward = "#include \"cuda/sm90/forward/forward_kernel.cuh\"\n",
                              *kHopperBackward = "#include \"cuda/sm90/backward/column_kernel.cuh\"\n";
  static const std::map<std::string, Kernel> all = {
      {"forward64", {kForward, "forward_kernel<Changed<ForwardShape<__nv_bfloat16, 64, 64, 2, (Queries)1, 3, 128, 4>"}},
      {"forward128",
       {kForward, "forward_kernel<Changed<ForwardShape<__nv_bfloat16, 128, 128, 2, (Queries)0, 2, 128, 0>"}},
      {"backward64", {kBackward, "column_kernel<Changed<ColumnShape<__nv_bfloat16, 64, LargeForm<64>>"}},
      {"backward128", {kBackward, "column_kernel<Changed<ColumnShape<__nv_bfloat16, 128, LargeForm<128>>"}},
      {"hopper_forward64",
       {kHopperForward,
        "sm90::forward_kernel<Changed<sm90::ForwardToChange<sm90::Forward64<__nv_bfloat16, MaskForm::intervals>, true>",
        "sm90::forward_kernel<Changed<sm90::ForwardToChange<sm90::Forward64<__nv_bfloat16, MaskForm::intervals>, "
        "false>"}},
      {"hopper_forward128",
       {kHopperForward,
        "sm90::forward_kernel<Changed<sm90::ForwardToChange<sm90::Forward128<__nv_bfloat16, MaskForm::intervals>, "
        "true>",
        "sm90::forward_kernel<Changed<sm90::ForwardToChange<sm90::Forward128<__nv_bfloat16, MaskForm::intervals>, "
        "false>"}},
      {"hopper_backward64",
       {kHopperBackward,
        "sm90::column_kernel<Changed<sm90::ColumnsToChange<sm90::Columns64<__nv_bfloat16, MaskForm::intervals>, 2>",
        "sm90::column_kernel<Changed<sm90::ColumnsToChange<sm90::Columns64<__nv_bfloat16, MaskForm::intervals>, 1>"}},
      {"hopper_backward128",
       {kHopperBackward, "sm90::column_kernel<Changed<sm90::Columns128<__nv_bfloat16, MaskForm::intervals>"}},
      {"of_the_bias",
       {"#include \"cuda/common/bias_gradient_kernel.cuh\"\n",
        "bias_gradient_kernel<Changed<BiasGradientShape<__nv_bfloat16>"}}};
  return all;
}

std::string mode() {
  const char* const set = std::getenv("FLASHMASK_CATALOGUE");
  return set == nullptr ? "" : set;
}

std::string path() { return test::source_folder() + "/tests/scores/catalogue.txt"; }

/// The file's lines: "# …", a name, an indented change, and indented kernels with what they take.
class Catalogue {
 public:
  Catalogue() {
    std::ifstream file(path());
    std::string name, change;
    for (std::string line; std::getline(file, line);) {
      lines_.push_back(line);
      std::istringstream words(line);
      std::string first;
      Taken taken;
      if (line.starts_with("# compiler ")) compiler_ = line.substr(11);
      if (line.empty() || line[0] == '#') continue;
      if (line[0] != ' ') {
        name = line;
        change.clear();
      } else if (change.empty()) {
        change = line.substr(2);
      } else if (words >> first >> taken.spilled >> taken.code) {
        const bool starred = first.ends_with('*');
        if (starred || !mode().empty())
          cases_.push_back({change, name, first.substr(0, first.size() - starred), taken});
      }
    }
  }

  const std::vector<Case>& cases() const { return cases_; }
  const std::string& compiler() const { return compiler_; }

  /// Writes what kernels take by name and kernel.
  void record(const std::map<std::string, Taken>& found, const std::string& compiler) const {
    std::ofstream file(path());
    std::string name;
    for (const std::string& line : lines_) {
      if (!line.empty() && line[0] != ' ' && line[0] != '#') name = line;
      std::istringstream words(line);
      std::string kernel;
      words >> kernel;
      const std::string plain = kernel.ends_with('*') ? kernel.substr(0, kernel.size() - 1) : kernel;
      const auto at = found.find(name + " " + plain);
      if (line.starts_with("# compiler "))
        file << "# compiler " << compiler << "\n";
      else if (line.starts_with("  ") && at != found.end())
        file << "  " << kernel << std::string(21 - kernel.size(), ' ') << at->second.spilled << " " << at->second.code
             << "\n";
      else
        file << line << "\n";
    }
  }

 private:
  std::vector<std::string> lines_;
  std::vector<Case> cases_;
  std::string compiler_;
};

const Catalogue& catalogue() {
  static const Catalogue read;
  return read;
}

template <class T>
T read_at(const std::string& bytes, std::size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

/// The size of a cubin's section of machine code: those of an ELF file whose names begin with .text.
std::size_t code_bytes(const std::string& cubin) {
  const auto table = read_at<std::uint64_t>(cubin, 0x28);
  const auto size = read_at<std::uint16_t>(cubin, 0x3A), count = read_at<std::uint16_t>(cubin, 0x3C),
             names = read_at<std::uint16_t>(cubin, 0x3E);
  const auto section = [&](std::uint16_t i) { return table + std::size_t{size} * i; };
  const auto text = read_at<std::uint64_t>(cubin, section(names) + 0x18);
  std::size_t bytes = 0;
  for (std::uint16_t i = 0; i < count; ++i)
    if (cubin.compare(text + read_at<std::uint32_t>(cubin, section(i)), 6, ".text.") == 0)
      bytes += read_at<std::uint64_t>(cubin, section(i) + 0x20);
  return bytes;
}

class CatalogueTest : public testing::TestWithParam<Case> {
 protected:
  static void TearDownTestSuite() {
    if (mode() == "record" && !found_.empty()) catalogue().record(found_, version());
  }
  static std::string version() { return nvrtc().version().substr(0, nvrtc().version().find(',')); }

  static Taken compiled(const Case& of) {
    const ScoreChange change = read_score(of.change);
    const Kernel kernel = kernels().at(of.kernel);
    KernelCode code{kernel.headers, {std::string(kernel.name) + ", Change>>"}};
    if (kernel.otherwise != nullptr) code.names.push_back(std::string(kernel.otherwise) + ", Change>>");
    const std::string text = text_of(code, change_text(change, usual_forms(change, DType::bf16)));
    const char* const names =
        kernel.of_hopper()
            ? "using namespace flashmask;\nusing namespace flashmask::cuda;\n"
            : "namespace flashmask::cuda::sm80 {}\nusing namespace flashmask::cuda;\nusing namespace sm80;\n";
    const auto made = best_code(code, [&](const std::string& name) {
      const char* const architecture = kernel.of_hopper() ? "sm_90a" : "sm_80";
      return FoundCode{nvrtc().compile({.text = text + names, .kernel = name, .architecture = architecture}),
                       KernelOrigin::compiler};
    });
    return {made.first.code.spilled, code_bytes(made.first.code.cubin)};
  }

  static inline std::map<std::string, Taken> found_;
};

/// Spills cost more than they save, and code that grows takes longer: 3 % is what another order of instructions may
/// take. A compiler that the numbers are not of gets 16 bytes and 10 %.
TEST_P(CatalogueTest, TakesNoMoreThanRecorded) {
  if (const std::string refusal = nvrtc_refusal(); !refusal.empty()) {
    const char* const named = std::getenv("FLASHMASK_NVRTC");  // where there is one, as in CI, nothing is skipped
    ASSERT_TRUE(named == nullptr || *named == 0) << refusal;
    GTEST_SKIP() << refusal;
  }
  const Case& of = GetParam();
  const Taken taken = compiled(of);
  found_[of.name + " " + of.kernel] = taken;
  if (mode() == "record") return;
  const bool same = version() == catalogue().compiler();
  EXPECT_LE(taken.spilled, of.limit.spilled + (same ? 0 : 16)) << of.change;
  EXPECT_LE(static_cast<double>(taken.code), static_cast<double>(of.limit.code) * (same ? 1.03 : 1.10)) << of.change;
}

std::string test_name(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.name + "_" + info.param.kernel;
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Catalogue, CatalogueTest, testing::ValuesIn(catalogue().cases()), test_name);

}  // namespace
}  // namespace flashmask::cuda::compile
