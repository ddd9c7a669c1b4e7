// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <string>
#include <vector>

#include "cuda/views/change.h"
#include "kit/random_numbers.h"
#include "plan/generate_change.h"
#include "plan/generated/operand_forms.h"
#include "plan/score_functions.h"

// What the text finds in a kernel, for the host.
#define __device__
#define __forceinline__ inline

namespace flashmask {
namespace {

using std::abs;
using std::max;
using std::min;

using cuda::ChangeOperands;
using cuda::ChangeTensor;

template <class T>
struct Entry {
  const ChangeTensor& tensor;
  const std::byte* place;

  explicit Entry(const ChangeTensor& of) : Entry(of, static_cast<const std::byte*>(of.data)) {}
  Entry(const ChangeTensor& of, const std::byte* at) : tensor(of), place(at) {}
  template <int kAxis>
  Entry far(int index) const {
    EXPECT_GE(index, 0);
    return {tensor, place + std::min(index, tensor.last[kAxis]) * tensor.strides[kAxis]};
  }
  template <int kAxis>
  Entry near(int index) const {
    EXPECT_LE(std::abs(tensor.strides[kAxis]), INT_MAX);
    return far<kAxis>(index);
  }
  template <int kAxis>
  Entry next(int index) const {
    EXPECT_TRUE(tensor.last[kAxis] == 0 || tensor.strides[kAxis] == sizeof(T));
    return far<kAxis>(index);
  }
  float value() const { return *reinterpret_cast<const T*>(place); }
};
[[maybe_unused]] bool has_entry(const ChangeTensor& table, int entry) { return entry >= 0 && entry <= table.last[3]; }
[[maybe_unused]] float exp2_approximate(float x) { return std::exp2(x); }
[[maybe_unused]] float log2_approximate(float x) { return std::log2(x); }
[[maybe_unused]] float sqrt_of(float x) { return std::sqrt(x); }
[[maybe_unused]] float reciprocal_of(float x) { return 1 / x; }
[[maybe_unused]] float sin_of(float x) { return std::sin(x); }
[[maybe_unused]] float cos_of(float x) { return std::cos(x); }
[[maybe_unused]] int floor_quotient(int a, int b) { return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); }

struct Asked {
  float product;
  int b, h, q, k, down, right;
};
struct Computed {
  float value, with_slope, slope, with_slopes, bias_slope;
};

template <class Change>
Computed computed(const ChangeOperands& operands, const Asked& asked) {
  const Change change(operands, asked.b, asked.h, asked.q - asked.down, asked.k - asked.right);
  Computed made{};
  made.value = change.value(asked.product, asked.down, asked.right);
  made.with_slope = change.value(asked.product, asked.down, asked.right, made.slope);
  if constexpr (requires(float& slope) { change.value(0.0f, 0, 0, slope, slope); })
    made.with_slopes = change.value(asked.product, asked.down, asked.right, made.slope, made.bias_slope);
  return made;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wconversion"
#include "changes.inc"
#pragma GCC diagnostic pop

constexpr std::int64_t kSizes[] = {4, 5, 6, 7};
constexpr std::int64_t kKeys = 7;
constexpr double kScale = 0.3;

/// The numbers that the changes read: each operand has its first dimensions' sizes, a bias all four. `dense`: whether
/// an operand's last axis is the dense one, else its first.
class Operands {
 public:
  Operands(const ScoreChange& change, const TensorForms& forms) : generated_(generate_change(change, forms)) {
    check::RandomNumbers random(7);
    for (float& each : values_) each = static_cast<float>(random.normal());
    std::ranges::transform(generated_.numbers, device.numbers,
                           [](const ChangeNumber& each) { return each.value(kScale); });
    device.integers[0] = kShift;
    const ScoreFunction whole = (change | scores::function("score")).function() == nullptr
                                    ? ScoreFunction::parse("score")
                                    : *(change | scores::function("score")).function();
    host.resize(static_cast<std::size_t>(whole.operands()));
    for (int i = 0; i < whole.operands(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      add(whole.rank(i), i, forms[at].dense);
      for (int axis = 0; axis < whole.rank(i); ++axis) host[at].shape[static_cast<std::size_t>(axis)] = kSizes[axis];
      doubles_[at] = contiguous(device.tensors[i], whole.rank(i));
      host[at].values = doubles_[at];
    }
    if (generated_.bias_tensor >= 0) add(4, generated_.bias_tensor, true);
  }

  /// What the bias has for a score.
  double bias(const ScoreChange& change, const Asked& at) const {
    if (change.bias() == ScoreBias::none) return 0;
    std::int64_t last = at.k;
    if (change.bias() == ScoreBias::distances) last = at.q - at.k + kShift;
    if (last < 0 || last >= kKeys) return 0;
    const std::int64_t index = ((at.b * kSizes[1] + at.h) * kSizes[2] + at.q) * kSizes[3] + last;
    return values_[index + generated_.bias_tensor];
  }

  ChangeOperands device{};
  std::vector<ScoreOperand> host;

 private:
  static constexpr int kShift = 2;

  /// Operand i begins at the i-th of the values.
  void add(int rank, int i, bool dense) {
    ChangeTensor& tensor = device.tensors[i];
    tensor = {values_ + i, {}, {}};
    std::int64_t stride = sizeof(float);
    for (int n = 0; n < rank; ++n) {
      const int axis = dense ? rank - 1 - n : n;
      tensor.last[axis] = static_cast<int>(kSizes[axis]) - 1;
      tensor.strides[axis] = stride;
      stride *= kSizes[axis];
    }
  }

  /// Returns a tensor's numbers with its last axis dense.
  static std::vector<double> contiguous(const ChangeTensor& tensor, int rank) {
    std::vector<const std::byte*> places = {static_cast<const std::byte*>(tensor.data)};
    for (int axis = 0; axis < rank; ++axis) {
      std::vector<const std::byte*> further;
      for (const std::byte* place : places)
        for (int i = 0; i <= tensor.last[axis]; ++i) further.push_back(place + i * tensor.strides[axis]);
      places = further;
    }
    std::vector<double> numbers;
    for (const std::byte* place : places) numbers.push_back(*reinterpret_cast<const float*>(place));
    return numbers;
  }

  GeneratedChange generated_;
  float values_[4 * 5 * 6 * 7 + 4];
  std::array<std::vector<double>, ScoreFunction::kMaxOperands> doubles_;
};

void expect_near(float given, double expected, const std::string& what) {
  if (std::isinf(expected))
    EXPECT_EQ(given, expected) << what;
  else
    EXPECT_NEAR(given, expected, 4e-6 * std::max(1.0, std::abs(expected))) << what;
}

/// The derivative's expression against the reference, which differentiates by its own rules.
TEST(GeneratedChange, ComputesWhatTheReferenceDoes) {
  check::RandomNumbers random(3);
  for (std::size_t i = 0; i < 2 * std::size(test::kScoreFunctions); ++i) {
    const char* const text = test::kScoreFunctions[i / 2];
    const ScoreChange change = ScoreChange::parse(text);
    const Operands operands(change, test::kOperandForms[i % 2]);
    for (int n = 0; n < 300; ++n) {
      Asked asked{static_cast<float>(4 / kScale * random.normal()),
                  static_cast<int>(random.below(2)),
                  static_cast<int>(random.below(5)),
                  static_cast<int>(random.below(6)),
                  static_cast<int>(random.below(7)),
                  0,
                  0};
      asked.down = n % 2 == 0 ? asked.q : asked.q / 2;
      asked.right = asked.k / 2;
      const ScorePlace place{operands.bias(change, asked), asked.b, asked.h, asked.q, asked.k, operands.host};
      const double score = kScale * asked.product;
      const ScoreChange::Changed expected = change.apply(score, place);
      const double value = expected.value * std::numbers::log2e;
      const Computed found = kComputed[i / 2][i % 2](operands.device, asked);
      const std::string what = std::string(text) + " of " + std::to_string(score);
      expect_near(found.value, value, what);
      expect_near(found.with_slope, value, what);
      expect_near(found.slope, expected.slope, "slope of " + what);
      if (change.bias() != ScoreBias::none) {
        expect_near(found.with_slopes, value, what);
        expect_near(found.bias_slope, expected.bias_slope, "slope by the bias of " + what);
      }
      if (HasFailure()) return;
    }
  }
}

TEST(GeneratedChange, HasOneTextForAllNumbers) {
  const auto text = [](const char* change) { return generate_change(ScoreChange::parse(change)).text; };
  EXPECT_EQ(text("function(mul(score, 3))"), text("function(mul(score, 3.5))"));
  EXPECT_EQ(text("softcap(50)"), text("softcap(30)"));
  EXPECT_NE(text("function(mul(score, 3))"), text("function(add(score, 3))"));
}

/// What takes few instructions: numbers joined ahead of the call, and no look at what a tensor is like.
TEST(GeneratedChange, ReadsTensorsAsTheyAre) {
  const auto text = [](const char* change, const TensorForms& forms) {
    return generate_change(ScoreChange::parse(change), forms).text;
  };
  const auto has = [](const std::string& all, const char* part) { return all.find(part) != std::string::npos; };
  const char* const read = "function(mul(score, at(0, h, q, k)))";
  EXPECT_TRUE(has(text(read, {}),
                  "Entry<float>(operands.tensors[0]).far<0>(head).near<1>((row + (down)))"
                  ".next<2>((column + (right)))"));
  EXPECT_TRUE(has(text(read, {{{.dtype = DType::bf16, .dense = false, .wide = 2}}}),
                  "Entry<__nv_bfloat16>(operands.tensors[0]).far<0>(head).far<1>((row + (down)))"
                  ".near<2>((column + (right)))"));
  EXPECT_TRUE(has(text("softcap(50)", {}), "return v2;"));
}

TEST(GeneratedChange, SaysWhatKernelsMayLeaveOut) {
  const auto has = [](const char* change, const char* flag) {
    return generate_change(ScoreChange::parse(change)).text.find(flag) != std::string::npos;
  };
  EXPECT_TRUE(has("function(mul(score, score))", "kLocates = false"));
  EXPECT_TRUE(has("function(mul(score, score))", "kSlope = true"));
  EXPECT_TRUE(has("function(mul(score, score))", "kGuards = false"));
  EXPECT_TRUE(has("function(add(score, at(0, h)))", "kLocates = true"));
  EXPECT_TRUE(has("function(add(score, at(0, h)))", "kSlope = false"));
  EXPECT_TRUE(has("function(log(score))", "kGuards = true"));
  EXPECT_TRUE(has("function(mul(score, at(0, h)))", "kGuards = false"));
  EXPECT_TRUE(has("function(mul(score, at(0, q)))", "kGuards = true"));
  EXPECT_TRUE(has("function(add(score, at(0, q)))", "kGuards = false"));
}

}  // namespace
}  // namespace flashmask
