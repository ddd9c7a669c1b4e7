// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cuda/kernels_under_test.h"
#include "cuda/plan_in_memory.h"
#include "cuda/runtime/status.h"
#include "flashmask/block_map.h"
#include "flashmask/builders.h"
#include "flashmask/device_plan.h"
#include "flashmask/error.h"
#include "flashmask/reference.h"
#include "kit/corpus.h"
#include "kit/device_memory.h"
#include "kit/error_bound.h"
#include "kit/host_tensor.h"
#include "kit/naive_attention.h"
#include "kit/placed_attention.h"
#include "kit/random_numbers.h"

namespace flashmask {
namespace {

using check::AttentionTensors;
using check::DeviceMemory;
using check::DeviceTensor;
using check::RandomNumbers;
using check::repeats;

Problem problem_for(const KernelInfo& kernel, std::int64_t rows, std::int64_t columns) {
  Problem problem;
  problem.batch = rows * columns > 10000 ? 1 : 2;
  problem.query_length = rows;
  problem.key_length = columns;
  problem.query_heads = 4;
  problem.kv_heads = 2;
  problem.head_dim = problem.value_dim = kernel.head_dim;
  problem.dtype = kernel.dtype;
  problem.device = {DeviceType::cuda, 0};
  return problem;
}

/// Random inputs, and the gradients that the device gives for them.
class Call {
 public:
  Call(Mask mask, const Problem& problem, std::uint64_t seed, bool with_grad_lse)
      : tensors(problem, seed), mask_(std::move(mask)), problem_(problem), with_grad_lse_(with_grad_lse) {
    // What no softmax gave does where nothing is compared with what is right.
    RandomNumbers random(seed + 1);
    tensors.o.fill_normal(random);
    tensors.lse.fill_normal(random);
  }

  /// grad_q, grad_k and grad_v of `tensors` receive the results.
  void run(const PlanOptions& options, const std::optional<MapLimits>& limits = {});

  AttentionTensors tensors;

 protected:
  friend class CallOnDevice;
  Mask mask_;
  Problem problem_;
  bool with_grad_lse_;
};

/// NaN everywhere.
void poison(const TensorView& tensor, cudaStream_t stream) {
  std::size_t bytes = size_in_bytes(tensor.dtype);
  for (int axis = 0; axis < tensor.rank; ++axis)
    bytes *= static_cast<std::size_t>(tensor.shape[static_cast<std::size_t>(axis)]);
  cuda::check(cudaMemsetAsync(tensor.data, 0xff, bytes, stream), "poison");
}

/// A call's tensors and a plan, on the device.
class CallOnDevice {
 public:
  CallOnDevice(Call& call, const PlanOptions& options, const std::optional<MapLimits>& limits = {})
      : call_(call),
        placed_(limits ? check::PlanInMemory(call.mask_, call.problem_, options, *limits)
                       : check::PlanInMemory(call.mask_, call.problem_, options)),
        workspace_bytes_(placed_.plan.workspace_bytes(Direction::backward, 1)),
        workspace_(kWorkspaceOffset + workspace_bytes_) {
    cuda::check(cudaDeviceSynchronize(), "plan");
  }

  void launch(cudaStream_t stream) {
    for (const DeviceTensor* output : {&grad_q_, &grad_k_, &grad_v_}) poison(output->view(), stream);
    // Nor is anything of the launch before there.
    cuda::check(cudaMemsetAsync(workspace_.data(), 0xff, workspace_.bytes(), stream), "poison");
    backward(placed_.plan,
             {.q = q_.view(),
              .k = k_.view(),
              .v = v_.view(),
              .o = o_.view(),
              .lse = lse_.view(),
              .grad_o = grad_o_.view(),
              .grad_lse = call_.with_grad_lse_ ? grad_lse_.view() : TensorView{},
              .grad_q = grad_q_.view(),
              .grad_k = grad_k_.view(),
              .grad_v = grad_v_.view()},
             {.workspace = static_cast<std::byte*>(workspace_.data()) + kWorkspaceOffset,
              .workspace_bytes = workspace_bytes_,
              .stream = stream});
  }

  /// Into the call's tensors.
  void download() const {
    cuda::check(cudaDeviceSynchronize(), "backward");
    for (const DeviceTensor* output : {&grad_q_, &grad_k_, &grad_v_}) output->download();
  }

 private:
  Call& call_;
  const BackwardTensors host_ = call_.tensors.backward();
  const DeviceTensor q_{host_.q}, k_{host_.k}, v_{host_.v}, o_{host_.o}, lse_{host_.lse}, grad_o_{host_.grad_o},
      grad_lse_{host_.grad_lse}, grad_q_{host_.grad_q}, grad_k_{host_.grad_k}, grad_v_{host_.grad_v};
  static constexpr std::size_t kWorkspaceOffset = 16;  // a workspace may begin anywhere
  check::PlanInMemory placed_;
  std::size_t workspace_bytes_;
  DeviceMemory workspace_;
};

void Call::run(const PlanOptions& options, const std::optional<MapLimits>& limits) {
  CallOnDevice on_device(*this, options, limits);
  on_device.launch(nullptr);
  on_device.download();
}

/// The same after a forward, and what is right. o and lse are the reference's, rounded: no forward kernel matters.
class CheckedCall : public Call {
 public:
  CheckedCall(Mask mask, const Problem& problem, std::uint64_t seed, bool with_grad_lse)
      : Call(std::move(mask), problem, seed, with_grad_lse) {
    const std::vector<double> q = tensors.q.values(), k = tensors.k.values(), v = tensors.v.values();
    const std::vector<double> grad_o = tensors.grad_o.values();
    const std::vector<double> grad_lse = with_grad_lse ? tensors.grad_lse.values() : std::vector<double>();
    const reference::Inputs inputs{q, k, v};
    const reference::Outputs outputs = reference::forward(problem, mask_, inputs);
    for (std::size_t i = 0; i < outputs.o.size(); ++i)
      tensors.o.set(static_cast<std::int64_t>(i), static_cast<float>(outputs.o[i]));
    for (std::size_t i = 0; i < outputs.lse.size(); ++i)
      tensors.lse.set(static_cast<std::int64_t>(i), static_cast<float>(outputs.lse[i]));
    expected_ = reference::backward(problem, mask_, inputs, grad_o, grad_lse);
    naive_ = check::naive::attend(problem, mask_, inputs, grad_o, grad_lse);
  }

  void expect_accurate(const std::string& what) const {
    const auto ratio = [&](const check::HostTensor& output, const std::vector<double>& reference,
                           const std::vector<double>& naive) {
      check::ErrorBound bound(problem_.dtype);
      bound.add(output.values(), reference, naive);
      return bound.result().ratio();
    };
    EXPECT_LE(ratio(tensors.grad_q, expected_.q, naive_.grad_q), 1) << what << ", grad_q";
    EXPECT_LE(ratio(tensors.grad_k, expected_.k, naive_.grad_k), 1) << what << ", grad_k";
    EXPECT_LE(ratio(tensors.grad_v, expected_.v, naive_.grad_v), 1) << what << ", grad_v";
  }

 private:
  reference::Gradients expected_;
  check::naive::Results naive_;
};

/// Kernels in the second one begin before those in the first where it `leads`.
class TwoStreams {
 public:
  explicit TwoStreams(bool leads) {
    int least = 0, greatest = 0;
    cuda::check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priorities");
    create(streams_[0], least);
    create(streams_[1], leads ? greatest : least);
  }
  ~TwoStreams() {
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  }
  TwoStreams(const TwoStreams&) = delete;
  TwoStreams& operator=(const TwoStreams&) = delete;

  cudaStream_t first() const { return streams_[0]; }
  cudaStream_t second() const { return streams_[1]; }

 private:
  static void create(cudaStream_t& stream, int priority) {
    cuda::check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority), "stream");
  }

  cudaStream_t streams_[2] = {};
};

std::vector<std::byte> bits_of(const check::HostTensor& tensor) {
  const auto* bytes = static_cast<const std::byte*>(tensor.view().data);
  return {bytes, bytes + static_cast<std::size_t>(tensor.size()) * size_in_bytes(tensor.view().dtype)};
}

class CudaBackward : public testing::TestWithParam<KernelInfo> {
 protected:
  PlanOptions options(Visit visit = Visit::active) const {
    return {
        .visit = visit, .form = GetParam().predicate, .kernel = GetParam().name, .deterministic = repeats(GetParam())};
  }

  /// Whether the kernel reads a mask of the form that it has, or bits, which any mask becomes.
  bool reads(const Mask& mask) const {
    if (GetParam().predicate == MaskForm::bits) return true;
    const BlockMap* blocks = mask.lowered().blocks();
    const TileShape tile = GetParam().tile;
    return mask.lowered().form() == MaskForm::intervals &&
           (blocks == nullptr || (blocks->block() % tile.rows == 0 && blocks->block() % tile.columns == 0));
  }
  /// Of gradients that have to repeat: those of q only where the kernel promises it.
  std::vector<std::vector<std::byte>> repeatable(const AttentionTensors& tensors) const {
    std::vector<std::vector<std::byte>> bits = {bits_of(tensors.grad_k), bits_of(tensors.grad_v)};
    if (repeats(GetParam())) bits.push_back(bits_of(tensors.grad_q));
    return bits;
  }
};

TEST_P(CudaBackward, HoldsTheBoundOverTheCorpus) {
  std::size_t turn = 0;
  for (const corpus::Entry& entry : corpus::entries()) {
    for (const corpus::Size& size : corpus::awkward_sizes()) {
      const std::int64_t heads = std::vector<std::int64_t>{1, 2, 4}[turn++ % 3];
      if (!entry.accepts(size)) continue;
      const Mask mask = entry.build({size.rows, size.columns, heads});
      if (!reads(mask)) continue;
      CheckedCall one(mask, problem_for(GetParam(), size.rows, size.columns), turn, turn % 2 == 0);
      one.run(options());
      one.expect_accurate(entry.name + " " + std::to_string(size.rows) + " x " + std::to_string(size.columns));
    }
  }
}

TEST_P(CudaBackward, VisitingEveryTileGivesTheSameBits) {
  CheckedCall one(masks::sliding_window(700, 900, 230), problem_for(GetParam(), 700, 900), 3, true);
  one.run(options());
  const auto skipping = repeatable(one.tensors);
  one.run(options(Visit::all));
  EXPECT_EQ(repeatable(one.tensors), skipping);
  one.expect_accurate("every tile");
}

TEST_P(CudaBackward, ReadsMapsInSquares) {
  if (GetParam().predicate == MaskForm::bits) GTEST_SKIP() << "maps of bits are flat";
  for (const corpus::Size& size : {corpus::Size{5000, 9000}, {140000, 300}}) {
    Problem problem = problem_for(GetParam(), size.rows, size.columns);
    problem.batch = problem.query_heads = problem.kv_heads = 1;
    Call one(masks::sliding_window(size.rows, size.columns, 3000), problem, 12, true);
    one.run(options());
    const auto flat = repeatable(one.tensors);
    one.run(options(), check::kSquares);
    EXPECT_EQ(repeatable(one.tensors), flat) << size.rows << " rows";
    one.run(options(Visit::all), check::kSquares);
    EXPECT_EQ(repeatable(one.tensors), flat) << size.rows << " rows";
  }
}

TEST_P(CudaBackward, HoldsTheBoundWithoutRoomForSquares) {
  if (GetParam().predicate == MaskForm::bits) GTEST_SKIP() << "maps of bits are flat";
  CheckedCall one(masks::sliding_window(700, 900, 230), problem_for(GetParam(), 700, 900), 13, true);
  one.run(options(), check::kNoRoom);
  one.expect_accurate("partial throughout");
  const auto partial = repeatable(one.tensors);
  one.run(options(Visit::all), check::kNoRoom);
  EXPECT_EQ(repeatable(one.tensors), partial);
}

TEST_P(CudaBackward, RepeatsToTheBit) {
  Call one(masks::causal_document(std::vector<std::int64_t>{100, 700, 37, 500}, 1500),
           problem_for(GetParam(), 1500, 1500), 4, false);
  one.run(options());
  const auto first = repeatable(one.tensors);
  CallOnDevice on_device(one, options());
  for (int repeat = 0; repeat < (repeats(GetParam()) ? 1000 : 100); ++repeat) {
    on_device.launch(nullptr);
    on_device.download();
    ASSERT_EQ(repeatable(one.tensors), first) << repeat;
  }
}

TEST_P(CudaBackward, TwoStreamsDoNotDisturbEachOther) {
  Call one(masks::sliding_window(900, 1100, 300), problem_for(GetParam(), 900, 1100), 11, true);
  one.run(options());
  const auto alone = repeatable(one.tensors);
  CallOnDevice first(one, options()), second(one, options());
  for (const bool leads : {false, true}) {
    const TwoStreams streams(leads);
    for (int repeat = 0; repeat < 20; ++repeat) {
      first.launch(streams.first());
      second.launch(streams.second());
    }
    for (const CallOnDevice* call : {&first, &second}) {
      call->download();
      EXPECT_EQ(repeatable(one.tensors), alone) << (leads ? "one stream leads" : "neither leads");
    }
  }
}

TEST_P(CudaBackward, KeysInSkippedTilesMayHoldAnything) {
  // Nobody sees the first 413 columns.
  const Problem problem = problem_for(GetParam(), 512, 1024);
  CheckedCall one(masks::sliding_window(512, 1024, 100), problem, 5, true);
  const std::int64_t skipped = 384 * problem.kv_heads * problem.head_dim;
  for (std::int64_t i = 0; i < skipped; ++i) {
    one.tensors.k.set(i, NAN);
    one.tensors.v.set(i, INFINITY);
  }
  one.run(options());
  one.expect_accurate("NaN in skipped keys");
  for (std::int64_t i = 0; i < skipped; ++i)
    ASSERT_TRUE(one.tensors.grad_k.at(i) == 0 && one.tensors.grad_v.at(i) == 0) << i;
}

TEST_P(CudaBackward, PadsSmallerHeads) {
  for (const std::int64_t head_dim : {std::int64_t{8}, std::int64_t{40}, GetParam().head_dim - 8}) {
    if (head_dim > GetParam().head_dim) continue;
    Problem problem = problem_for(GetParam(), 200, 333);
    problem.head_dim = head_dim;
    problem.value_dim = GetParam().head_dim - 24;
    CheckedCall one(masks::causal(200, 333), problem, 7, true);
    one.run(options());
    one.expect_accurate("head dim " + std::to_string(head_dim));
  }
}

TEST_P(CudaBackward, ScalesAsAsked) {
  Problem problem = problem_for(GetParam(), 150, 150);
  problem.scale = 0.37F;
  CheckedCall one(masks::causal(150, 150), problem, 8, false);
  one.run(options());
  one.expect_accurate("scale 0.37");
}

TEST_P(CudaBackward, HasNoGradientWithoutQueriesOrKeys) {
  for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{0, 200}, {200, 0}}) {
    Call one(masks::full(rows, columns), problem_for(GetParam(), rows, columns), 9, false);
    one.run(options());
    for (const check::HostTensor* gradient : {&one.tensors.grad_q, &one.tensors.grad_k, &one.tensors.grad_v})
      for (std::int64_t i = 0; i < gradient->size(); ++i) ASSERT_EQ(gradient->at(i), 0) << rows << " x " << columns;
  }
}

TEST_P(CudaBackward, HasNoGradientOfABiasWithoutQueriesOrKeys) {
  for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{0, 200}, {200, 0}})
    for (const ScoreChange& change : {scores::bias(), scores::distance()})
      for (const std::int64_t batch : {1, 2}) {  // rows share a table of distances where there are two
        Problem problem = problem_for(GetParam(), rows, columns);
        problem.change = change;
        problem.batch = batch;
        if (!why_not(GetParam(), problem, GetParam().predicate).empty()) continue;
        const AttentionTensors host(problem, 9);
        const check::PlacedTensors tensors(host, problem.device);
        check::PlacedPlan placed(masks::full(rows, columns), problem, options());
        placed.backward(tensors.backward());
        tensors.fetch();
        for (std::int64_t i = 0; i < host.grad_bias->size(); ++i)
          ASSERT_EQ(host.grad_bias->at(i), 0) << rows << " x " << columns << ", batch " << batch;
      }
}

TEST_P(CudaBackward, NamesATensorThatLiesBadly) {
  const Problem problem = problem_for(GetParam(), 64, 64);
  const Mask mask = masks::causal(64, 64);
  AttentionTensors tensors(problem, 10);
  const DeviceMemory memory(plan_bytes(mask, problem, options()));
  const Plan placed = plan(mask, problem, {nullptr, memory.data(), memory.bytes()}, options());
  const DeviceMemory workspace(placed.workspace_bytes(Direction::backward, 1));
  BackwardTensors given = tensors.backward();
  for (TensorView* view : {&given.q, &given.k, &given.v, &given.o, &given.lse, &given.grad_o, &given.grad_lse,
                           &given.grad_q, &given.grad_k, &given.grad_v})
    view->device = problem.device;
  given.grad_q.data = static_cast<std::byte*>(given.grad_q.data) + 2;
  try {
    backward(placed, given, {.workspace = workspace.data(), .workspace_bytes = workspace.bytes()});
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("backward: grad_q"), std::string::npos) << error.what();
  }
}

/// Those that add the gradient of q up in global memory.
class CudaBackwardBySums : public CudaBackward {};

/// So many that key tiles which visit all of them begin together.
constexpr std::int64_t kManyQueries = 33000;

/// Of rows that are visited from the first key tile to the last, from early and from late ones, and never.
std::vector<std::pair<std::string, Mask>> long_masks(std::int64_t tokens, std::int64_t heads) {
  std::mt19937 draw(5);
  const auto up_to = [&](std::int64_t most) { return static_cast<std::int64_t>(draw() % static_cast<unsigned>(most)); };
  std::vector<std::int64_t> documents, evicted;
  for (std::int64_t left = tokens - 300; left > 0; left -= documents.back())
    documents.push_back(std::min(left, 1 + up_to(400)));
  for (std::int64_t i = 0; i < heads * tokens; ++i) evicted.push_back(std::min(tokens, i % tokens + 1 + up_to(tokens)));
  return {{"causal documents", masks::causal_document(documents, tokens)},
          {"documents", masks::document(documents, tokens)},
          {"a window", masks::sliding_window(tokens, tokens, 500)},
          {"a window and tokens that all see", masks::global_sliding_window(tokens, 70, 200, 200)},
          {"all", masks::full(tokens, tokens)},
          {"causal", masks::causal(tokens, tokens)},
          {"a set of keys a head", masks::random_eviction(tokens, evicted, heads)},
          {"a window, of more keys than it reaches", masks::window(tokens, 2 * tokens, 0, 300)},
          {"all, of so many queries", masks::full(kManyQueries, 700)},
          {"all, of so many queries and of keys for several waves of blocks", masks::full(kManyQueries, 18000)},
          {"a window over so many queries", masks::sliding_window(kManyQueries, kManyQueries, 300)}};
}

/// With probabilities that float16 can add up. Of many queries a head or two, as most time goes into the host's part.
Call long_call(const KernelInfo& kernel, const Mask& mask) {
  Problem problem = problem_for(kernel, mask.shape().rows, mask.shape().columns);
  problem.batch = 2;
  if (mask.shape().rows >= kManyQueries) {
    problem.batch = problem.kv_heads = 1;
    problem.query_heads = 2;
  }
  Call one(mask, problem, 12, true);
  for (std::int64_t i = 0; i < one.tensors.lse.size(); ++i) one.tensors.lse.set(i, one.tensors.lse.at(i) + 5);
  return one;
}

/// Each row within a thirtieth of its greatest number: a tile that is left out or added twice is more.
void expect_same_rows(const std::vector<double>& found, const std::vector<double>& expected, std::int64_t dim,
                      const std::string& what) {
  const auto row_length = static_cast<std::size_t>(dim);
  std::size_t wrong = 0;
  for (std::size_t row = 0; row < expected.size(); row += row_length) {
    const auto range = [&](const std::vector<double>& values) { return std::span(values).subspan(row, row_length); };
    double greatest = 0;
    for (const double value : range(expected)) greatest = std::max(greatest, std::abs(value));
    // So that NaN is wrong, as what nobody wrote is.
    const auto close = [&](double a, double b) { return a == b || std::abs(a - b) <= greatest / 30; };
    wrong += std::ranges::equal(range(found), range(expected), close) ? 0 : 1;
  }
  EXPECT_EQ(wrong, 0) << what << ": rows of " << expected.size() / row_length;
}

TEST_P(CudaBackwardBySums, FindWhatTwoPassesFind) {
  for (const auto& [name, mask] : long_masks(5000, 4)) {
    if (!reads(mask)) continue;
    Call one = long_call(GetParam(), mask);
    one.run({.form = GetParam().predicate, .deterministic = true});
    const std::vector<double> expected = one.tensors.grad_q.values();
    CallOnDevice on_device(one, options());
    const int repeats = mask.shape().rows < kManyQueries ? 5 : 2;
    for (int repeat = 0; repeat < repeats; ++repeat) {
      on_device.launch(nullptr);
      on_device.download();
      expect_same_rows(one.tensors.grad_q.values(), expected, GetParam().head_dim, name);
    }
  }
}

TEST_P(CudaBackwardBySums, FindTheSameBesideLaunchesThatLead) {
  Call all = long_call(GetParam(), masks::full(kManyQueries, 18000)),
       window = long_call(GetParam(), masks::sliding_window(5000, 5000, 500));
  const auto gradients = [&](Call& call) { return std::pair(repeatable(call.tensors), call.tensors.grad_q.values()); };
  all.run(options());
  window.run(options());
  const auto all_alone = gradients(all), window_alone = gradients(window);
  CallOnDevice all_on_device(all, options()), window_on_device(window, options());
  const auto expect_same = [&](const CallOnDevice& on_device, Call& call, const auto& alone, const std::string& name) {
    on_device.download();
    const auto found = gradients(call);
    EXPECT_TRUE(found.first == alone.first) << name;
    expect_same_rows(found.second, alone.second, GetParam().head_dim, name);
  };
  const TwoStreams streams(true);
  for (int repeat = 0; repeat < 3; ++repeat) {
    // Its first launch has the device when the others come: blocks of `all` begin here and there.
    window_on_device.launch(streams.second());
    all_on_device.launch(streams.first());
    for (int i = 0; i < 10; ++i) window_on_device.launch(streams.second());
    expect_same(all_on_device, all, all_alone, "all");
    expect_same(window_on_device, window, window_alone, "a window");
  }
}

/// What a kernel of this name gives: all gradients.
std::vector<std::vector<std::byte>> bits_from(const std::string& kernel, const Mask& mask, const Problem& problem) {
  Call one(mask, problem, 8, true);
  one.run({.form = kernel.find(".bits") == std::string::npos ? MaskForm::intervals : MaskForm::bits,
           .kernel = kernel,
           .deterministic = kernel.ends_with(".deterministic")});
  return {bits_of(one.tensors.grad_q), bits_of(one.tensors.grad_k), bits_of(one.tensors.grad_v)};
}

/// A name with one of its tiles, such as …d128.m64n64.intervals.deterministic; that of a deterministic kernel if
/// `deterministic`.
std::string with_tile(const KernelInfo& kernel, const std::string& tile, bool deterministic) {
  const std::size_t begin = kernel.name.find(".m"), end = kernel.name.find('.', kernel.name.find('+'));
  const std::string name = kernel.name.substr(0, begin) + "." + tile + kernel.name.substr(end);
  return name + (deterministic && !repeats(kernel) ? ".deterministic" : "");
}

/// That of a kernel's small tiles alone: of sm90 it is always deterministic.
std::string small_of(const KernelInfo& kernel) { return with_tile(kernel, "m64n64", kernel.arch == "sm90"); }

/// Of the gradients, of q only the first 128 rows: their sums are of at most two key tiles, whose order does not
/// matter.
std::vector<std::vector<std::byte>> repeating(std::vector<std::vector<std::byte>> bits, const Problem& problem) {
  bits[0].resize(static_cast<std::size_t>(128 * problem.query_heads * problem.head_dim) * 2);
  return bits;
}

TEST(CudaBackwardChoice, TakesSmallTilesForShortDocumentsOnly) {
  for (const KernelInfo& kernel : check::cuda_kernels(Direction::backward)) {
    if (kernel.name.find('+') == std::string::npos) continue;
    Problem problem = problem_for(kernel, 1300, 1300);
    problem.query_heads = 48;  // enough numbers that some are rounded to others where sums have other parts
    // Rows of a document of 65 see two key tiles at most.
    const Mask shorts = masks::causal_document(std::vector<std::int64_t>(20, 65), 1300),
               one = masks::causal(1300, 1300);
    const std::string small = small_of(kernel), large = with_tile(kernel, "m64n128", false);
    EXPECT_TRUE(bits_from(kernel.name, shorts, problem) == bits_from(small, shorts, problem)) << kernel.name;
    const auto of = [&](const std::string& name) {
      const auto bits = bits_from(name, one, problem);
      return repeats(kernel) ? bits : repeating(bits, problem);
    };
    EXPECT_TRUE(of(kernel.name) == of(large)) << kernel.name;
    EXPECT_TRUE(of(small) != of(large)) << "nothing to tell them by";
  }
}

/// Two passes are one where nobody reads what the other is for; a kernel that does all at once computes everything.
TEST_P(CudaBackward, SkippedGradientsLeaveTheOthersTheirBits) {
  const Mask shorts = masks::causal_document(std::vector<std::int64_t>(20, 65), 1300);
  for (const Mask& mask : {masks::causal(1300, 1300), shorts}) {
    Call one(mask, problem_for(GetParam(), 1300, 1300), 8, true);
    PlanOptions given{.form = GetParam().predicate, .kernel = GetParam().name, .deterministic = repeats(GetParam())};
    one.run(given);
    const auto q = bits_of(one.tensors.grad_q), k = bits_of(one.tensors.grad_k), v = bits_of(one.tensors.grad_v);
    given.skip_query_gradient = true;
    one.run(given);
    EXPECT_TRUE(bits_of(one.tensors.grad_k) == k);
    EXPECT_TRUE(bits_of(one.tensors.grad_v) == v);
    const bool fuses = GetParam().name.find(".m64n64.") != std::string::npos && GetParam().arch == "sm90";
    const bool two_passes = repeats(GetParam()) && GetParam().name.find('+') == std::string::npos && !fuses;
    EXPECT_TRUE(!two_passes || std::isnan(one.tensors.grad_q.at(0))) << "it was computed";
    given.skip_query_gradient = false;
    given.skip_key_gradients = true;
    one.run(given);
    EXPECT_TRUE(!repeats(GetParam()) || bits_of(one.tensors.grad_q) == q);
    EXPECT_TRUE(!two_passes || std::isnan(one.tensors.grad_k.at(0))) << "it was computed";
  }
}

/// Those that may make both passes in one launch.
class CudaBackwardFused : public CudaBackward {};

TEST_P(CudaBackwardFused, FindsWhatTwoPassesFind) {
  const auto run = [&](Call& call, const char* tile) {
    call.run({.form = GetParam().predicate, .kernel = with_tile(GetParam(), tile, true), .deterministic = true});
    return std::array{call.tensors.grad_q.values(), call.tensors.grad_k.values(), call.tensors.grad_v.values()};
  };
  for (const auto& [name, mask] : long_masks(5000, 4)) {
    if (!reads(mask)) continue;
    Call one = long_call(GetParam(), mask);
    const auto expected = run(one, "m64n128"), found = run(one, "m64n64");
    for (std::size_t i = 0; i < found.size(); ++i)
      expect_same_rows(found[i], expected[i], GetParam().head_dim, name + ", gradient " + std::to_string(i));
  }
}

std::vector<KernelInfo> kernels_that_fuse() {
  std::vector<KernelInfo> chosen = check::cuda_kernels(Direction::backward);
  std::erase_if(
      chosen, [](const KernelInfo& kernel) { return !repeats(kernel) || kernel.name.find('+') == std::string::npos; });
  return chosen;
}

std::vector<KernelInfo> kernels_by_sums() {
  std::vector<KernelInfo> chosen = check::cuda_kernels(Direction::backward);
  std::erase_if(chosen, [](const KernelInfo& kernel) { return repeats(kernel); });
  return chosen;
}

INSTANTIATE_TEST_SUITE_P(Kernels, CudaBackwardBySums, testing::ValuesIn(kernels_by_sums()), check::test_name);
INSTANTIATE_TEST_SUITE_P(Kernels, CudaBackwardFused, testing::ValuesIn(kernels_that_fuse()), check::test_name);
INSTANTIATE_TEST_SUITE_P(Kernels, CudaBackward, testing::ValuesIn(check::cuda_kernels(Direction::backward)),
                         check::test_name);

}  // namespace
}  // namespace flashmask
