// SPDX-License-Identifier: Apache-2.0
#include "flashmask/reference.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "c_api/handles.h"
#include "kit/random_numbers.h"

namespace flashmask::c_api {
namespace {

const flashmask_problem kProblem = [] {
  flashmask_problem problem = make_problem(2, 30, 41, 4, 2, 12, 20);
  problem.scale = 0.25F;
  return problem;
}();
constexpr std::uint64_t kSeed = 0x0123456789abcdef;
constexpr std::uint64_t kOffset = 5;

/// One array in both precisions.
struct Array {
  std::vector<double> wide;
  std::vector<float> narrow;

  explicit Array(std::int64_t size) : wide(static_cast<std::size_t>(size), std::nan("")), narrow(wide.size()) {}

  void fill(check::RandomNumbers& random) {
    for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = narrow[i] = random.normal();
  }
  flashmask_tensor tensor(std::vector<std::int64_t> shape) {
    flashmask_tensor tensor{};
    tensor.data = narrow.data();
    tensor.rank = static_cast<std::int32_t>(shape.size());
    std::int64_t stride = 1;
    for (std::size_t i = shape.size(); i-- > 0; stride *= shape[i]) {
      tensor.shape[i] = shape[i];
      tensor.strides[i] = stride;
    }
    return tensor;
  }
  void expect_same() const {
    for (std::size_t i = 0; i < wide.size(); ++i) {
      if (std::isinf(wide[i])) {
        EXPECT_EQ(wide[i], narrow[i]) << i;
      } else {
        EXPECT_NEAR(wide[i], narrow[i], 2e-5) << i;
      }
    }
  }
};

/// The same attention by the reference and by a kernel in float32.
struct BothWays {
  flashmask_problem p;
  Array q{p.batch * p.query_length * p.query_heads * p.head_dim};
  Array k{p.batch * p.key_length * p.kv_heads * p.head_dim};
  Array v{p.batch * p.key_length * p.kv_heads * p.value_dim};
  Array o{p.batch * p.query_length * p.query_heads * p.value_dim};
  Array lse{p.batch * p.query_heads * p.query_length};
  Array max_scores{static_cast<std::int64_t>(lse.wide.size())};
  Array grad_o{static_cast<std::int64_t>(o.wide.size())};
  Array grad_lse{static_cast<std::int64_t>(lse.wide.size())};
  Array grad_q{static_cast<std::int64_t>(q.wide.size())};
  Array grad_k{static_cast<std::int64_t>(k.wide.size())};
  Array grad_v{static_cast<std::int64_t>(v.wide.size())};
  Array sinks{p.query_heads};
  Array grad_sinks{p.query_heads};
  bool with_sinks = false;
  std::vector<std::int64_t> bias_shape;  ///< empty: none
  std::int64_t bias_origin = 0;
  Array bias{0}, grad_bias{0};
  std::vector<std::int32_t> place;  // of dropout

  explicit BothWays(const flashmask_problem& problem) : p(problem) {
    check::RandomNumbers random(1);
    for (Array* input : {&q, &k, &v, &grad_o, &grad_lse, &sinks}) input->fill(random);
  }

  void add_bias(flashmask_score_bias kind, const std::vector<std::int64_t>& shape, std::int64_t origin) {
    p.bias = kind;
    bias_shape = shape;
    bias_origin = origin;
    bias = grad_bias = Array(shape[0] * shape[1] * shape[2] * shape[3]);
    check::RandomNumbers random(2);
    bias.fill(random);
  }

  flashmask_reference_inputs inputs() const {
    flashmask_reference_inputs inputs = FLASHMASK_INIT(flashmask_reference_inputs);
    inputs.q = q.wide.data();
    inputs.k = k.wide.data();
    inputs.v = v.wide.data();
    inputs.dropout_seed = kSeed;
    inputs.dropout_offset = kOffset;
    inputs.dropout_place = place.data();
    inputs.dropout_place_size = std::ssize(place);
    if (with_sinks) {
      inputs.sinks = sinks.wide.data();
      inputs.sink_count = p.query_heads;
    }
    if (!bias_shape.empty()) {
      inputs.bias = bias.wide.data();
      std::ranges::copy(bias_shape, inputs.bias_shape);
      inputs.bias_origin = bias_origin;
    }
    return inputs;
  }

  void run(const flashmask_mask* mask, bool with_grad_lse) {
    const flashmask_reference_inputs given = inputs();
    ASSERT_EQ(flashmask_reference_forward(mask, &p, &given, o.wide.data(), lse.wide.data()), FLASHMASK_OK)
        << flashmask_last_error();
    ASSERT_EQ(flashmask_reference_max_scores(mask, &p, &given, max_scores.wide.data()), FLASHMASK_OK)
        << flashmask_last_error();
    ASSERT_EQ(flashmask_reference_backward(mask, &p, &given, grad_o.wide.data(),
                                           with_grad_lse ? grad_lse.wide.data() : nullptr, grad_q.wide.data(),
                                           grad_k.wide.data(), grad_v.wide.data()),
              FLASHMASK_OK)
        << flashmask_last_error();
    if (with_sinks) {
      ASSERT_EQ(
          flashmask_reference_backward_sinks(mask, &p, &given, grad_o.wide.data(),
                                             with_grad_lse ? grad_lse.wide.data() : nullptr, grad_sinks.wide.data()),
          FLASHMASK_OK)
          << flashmask_last_error();
    }
    if (!bias_shape.empty()) {
      ASSERT_EQ(
          flashmask_reference_backward_bias(mask, &p, &given, grad_o.wide.data(),
                                            with_grad_lse ? grad_lse.wide.data() : nullptr, grad_bias.wide.data()),
          FLASHMASK_OK)
          << flashmask_last_error();
    }
    run_kernels(mask, with_grad_lse);
  }

  void expect_same() const {
    for (const Array* output : {&o, &lse, &max_scores, &grad_q, &grad_k, &grad_v}) output->expect_same();
    if (with_sinks) grad_sinks.expect_same();
    grad_bias.expect_same();
  }

 private:
  void run_kernels(const flashmask_mask* mask, bool with_grad_lse) {
    const std::vector<std::int64_t> queries{p.batch, p.query_length, p.query_heads, p.head_dim};
    const std::vector<std::int64_t> keys{p.batch, p.key_length, p.kv_heads, p.head_dim};
    const std::vector<std::int64_t> values{p.batch, p.key_length, p.kv_heads, p.value_dim};
    const std::vector<std::int64_t> outputs{p.batch, p.query_length, p.query_heads, p.value_dim};
    const std::vector<std::int64_t> rows{p.batch, p.query_heads, p.query_length};
    flashmask_plan* plan = nullptr;
    ASSERT_EQ(flashmask_plan_create(mask, &p, nullptr, &plan), FLASHMASK_OK) << flashmask_last_error();
    const PlanHandle owner(plan);
    flashmask_execution execution = FLASHMASK_INIT(flashmask_execution);
    execution.dropout_seed = kSeed;
    execution.dropout_offset = kOffset;
    execution.dropout_place = place.data();
    execution.dropout_place_size = std::ssize(place);
    flashmask_forward_tensors forward = FLASHMASK_INIT(flashmask_forward_tensors);
    forward.q = q.tensor(queries);
    forward.k = k.tensor(keys);
    forward.v = v.tensor(values);
    forward.o = o.tensor(outputs);
    forward.lse = lse.tensor(rows);
    forward.max_scores = max_scores.tensor(rows);
    if (with_sinks) forward.sinks = sinks.tensor({p.query_heads});
    if (!bias_shape.empty()) forward.bias = bias.tensor(bias_shape);
    forward.bias_origin = bias_origin;
    ASSERT_EQ(flashmask_forward(plan, &forward, &execution), FLASHMASK_OK) << flashmask_last_error();
    flashmask_backward_tensors backward = FLASHMASK_INIT(flashmask_backward_tensors);
    backward.q = forward.q;
    backward.k = forward.k;
    backward.v = forward.v;
    backward.o = forward.o;
    backward.lse = forward.lse;
    backward.grad_o = grad_o.tensor(outputs);
    if (with_grad_lse) backward.grad_lse = grad_lse.tensor(rows);
    backward.grad_q = grad_q.tensor(queries);
    backward.grad_k = grad_k.tensor(keys);
    backward.grad_v = grad_v.tensor(values);
    if (with_sinks) {
      backward.sinks = forward.sinks;
      backward.grad_sinks = grad_sinks.tensor({p.query_heads});
    }
    if (!bias_shape.empty()) {
      backward.bias = forward.bias;
      backward.bias_origin = bias_origin;
      backward.grad_bias = grad_bias.tensor(bias_shape);
    }
    ASSERT_EQ(flashmask_backward(plan, &backward, &execution), FLASHMASK_OK) << flashmask_last_error();
  }
};

TEST(ReferenceAbi, TakesAScaleInDoublePrecision) {
  flashmask_problem problem = make_problem(1, 1, 1, 1, 1, 1, 1);
  problem.scale = 0.25F;
  problem.double_scale = 0.1;  // wins
  const double one = 1;
  auto inputs = FLASHMASK_INIT(flashmask_reference_inputs);
  inputs.q = inputs.k = inputs.v = &one;
  flashmask_mask* mask = nullptr;
  ASSERT_EQ(flashmask_mask_full(1, 1, &mask), FLASHMASK_OK);
  double o = 0, lse = 0;
  EXPECT_EQ(flashmask_reference_forward(mask, &problem, &inputs, &o, &lse), FLASHMASK_OK);
  EXPECT_EQ(lse, 0.1);
  flashmask_mask_destroy(mask);
}

TEST(Reference, IsWhatTheKernelsCompute) {
  const MaskHandle window = make(flashmask_mask_sliding_window, 30, 41, 9);
  for (const double dropout : {0.0, 0.3}) {
    for (const bool with_grad_lse : {false, true}) {
      BothWays both(kProblem);
      both.p.dropout = dropout;
      both.run(window.get(), with_grad_lse);
      both.expect_same();
    }
  }
}

TEST(Reference, IsWhatTheKernelsComputeOfAPart) {
  const MaskHandle window = make(flashmask_mask_sliding_window, 30, 41, 9);
  BothWays whole(kProblem), part(kProblem);
  whole.p.dropout = part.p.dropout = 0.3;
  const std::vector<std::int32_t> rows = {1, 4, 5, 7};
  std::int64_t size = 0;
  part.place.resize(200);
  ASSERT_EQ(flashmask_dropout_place_pack(&part.p, 1, part.p.query_heads + 2, rows.data(), nullptr, part.place.data(),
                                         200, &size),
            FLASHMASK_OK)
      << flashmask_last_error();
  part.place.resize(static_cast<std::size_t>(size));
  whole.run(window.get(), true);
  part.run(window.get(), true);
  part.expect_same();
  EXPECT_NE(whole.o.wide, part.o.wide);
}

TEST(Reference, IsWhatTheKernelsComputeWithSinks) {
  const std::vector<std::int64_t> documents{10, 12};  // eight rows see nothing
  const MaskHandle mask = make(flashmask_mask_document, documents.data(), 2, 30);
  for (const bool with_grad_lse : {false, true}) {
    flashmask_problem problem = kProblem;
    problem.key_length = 30;
    BothWays both(problem);
    both.with_sinks = true;
    both.run(mask.get(), with_grad_lse);
    both.expect_same();
    EXPECT_EQ(both.lse.wide.back(), both.sinks.wide.back());
  }
}

TEST(Reference, IsWhatTheKernelsComputeWithABias) {
  const MaskHandle window = make(flashmask_mask_sliding_window, 30, 41, 9);
  BothWays dense(kProblem), table(kProblem);
  dense.add_bias(FLASHMASK_BIAS_TENSOR, {1, 4, 30, 41}, 0);
  table.add_bias(FLASHMASK_BIAS_DISTANCES, {2, 1, 1, 6}, 2);
  for (BothWays* both : {&dense, &table}) {
    both->run(window.get(), true);
    both->expect_same();
  }
}

TEST(Reference, IsWhatTheKernelsComputeWithAChangeThatIsWritten) {
  const MaskHandle window = make(flashmask_mask_sliding_window, 30, 41, 9);
  BothWays written(kProblem), fields(kProblem);
  for (BothWays* both : {&written, &fields}) both->add_bias(FLASHMASK_BIAS_TENSOR, {1, 4, 30, 41}, 0);
  written.p.bias = FLASHMASK_BIAS_NONE;
  written.p.change = "softcap(2) | bias";
  fields.p.softcap = 2;
  for (BothWays* both : {&written, &fields}) {
    both->run(window.get(), true);
    both->expect_same();
  }
  EXPECT_EQ(written.o.wide, fields.o.wide);
  written.p.change = "bias | softcap(2) | multiply(3)";
  written.run(window.get(), true);
  written.expect_same();
  EXPECT_NE(written.o.wide, fields.o.wide);
}

TEST(Reference, RefusesABiasThatIsMissing) {
  const MaskHandle mask = make(flashmask_mask_full, 30, 41);
  BothWays both(kProblem);
  both.add_bias(FLASHMASK_BIAS_TENSOR, {1, 1, 1, 41}, 0);
  flashmask_reference_inputs inputs = both.inputs();
  inputs.bias = nullptr;
  expect_refused(flashmask_reference_forward(mask.get(), &both.p, &inputs, both.o.wide.data(), both.lse.wide.data()),
                 FLASHMASK_INVALID_ARGUMENT, "inputs.bias is NULL");
}

TEST(Reference, RefusesSinksOfAnotherLength) {
  const MaskHandle mask = make(flashmask_mask_full, 30, 41);
  BothWays both(kProblem);
  both.with_sinks = true;
  flashmask_reference_inputs inputs = both.inputs();
  inputs.sink_count = 3;
  expect_refused(flashmask_reference_forward(mask.get(), &both.p, &inputs, both.o.wide.data(), both.lse.wide.data()),
                 FLASHMASK_INVALID_ARGUMENT, "reference: sinks holds 3 elements; the problem needs 240");
}

TEST(Reference, GivesRowsThatSeeNothingTheirValues) {
  const std::vector<std::int64_t> documents{10, 12};
  const MaskHandle mask = make(flashmask_mask_document, documents.data(), 2, 30);
  BothWays both(kProblem);
  both.p.key_length = 30;
  both = BothWays(both.p);
  both.run(mask.get(), true);
  both.expect_same();
  EXPECT_EQ(both.lse.wide.back(), -HUGE_VAL);
  EXPECT_EQ(both.o.wide.back(), 0);
  EXPECT_EQ(both.grad_q.wide.back(), 0);
}

TEST(Reference, TakesNoArraysWhereNothingIs) {
  const MaskHandle mask = make(flashmask_mask_full, 0, 0);
  flashmask_problem nothing = kProblem;
  nothing.query_length = nothing.key_length = 0;
  const flashmask_reference_inputs inputs = FLASHMASK_INIT(flashmask_reference_inputs);
  EXPECT_EQ(flashmask_reference_forward(mask.get(), &nothing, &inputs, nullptr, nullptr), FLASHMASK_OK);
  EXPECT_EQ(flashmask_reference_backward(mask.get(), &nothing, &inputs, nullptr, nullptr, nullptr, nullptr, nullptr),
            FLASHMASK_OK)
      << flashmask_last_error();
}

TEST(Reference, RefusesWhatIsMissing) {
  const MaskHandle mask = make(flashmask_mask_full, 30, 41);
  BothWays both(kProblem);
  flashmask_reference_inputs inputs = both.inputs();
  double* o = both.o.wide.data();
  double* lse = both.lse.wide.data();
  const auto forward = [&] { return flashmask_reference_forward(mask.get(), &both.p, &inputs, o, lse); };
  o = nullptr;
  expect_refused(forward(), FLASHMASK_INVALID_ARGUMENT, "o is NULL");
  o = both.o.wide.data();
  inputs.v = nullptr;
  expect_refused(forward(), FLASHMASK_INVALID_ARGUMENT, "inputs.v is NULL");
  inputs = both.inputs();
  both.p.head_dim = 0;
  expect_refused(forward(), FLASHMASK_INVALID_ARGUMENT, "head_dim is 0");
  both.p = kProblem;
  both.p.query_length = 31;
  expect_refused(forward(), FLASHMASK_INVALID_ARGUMENT, "does not fit the problem");
  both.p = kProblem;
  both.p.dropout = 0.5;
  inputs.dropout_place_size = 3;
  expect_refused(forward(), FLASHMASK_INVALID_ARGUMENT, "dropout_place is NULL");
  const std::int32_t place[3] = {};
  inputs.dropout_place = place;
  expect_refused(forward(), FLASHMASK_INVALID_ARGUMENT, "the dropout place has 3 numbers");
  inputs.dropout_place_size = 0;
  expect_refused(forward(), FLASHMASK_INVALID_ARGUMENT, "dropout_place is given and dropout_place_size is 0");
  inputs.dropout_place = nullptr;
  inputs.dropout_offset = std::uint64_t{1} << 32;
  expect_refused(forward(), FLASHMASK_INVALID_ARGUMENT, "dropout offset is 4294967296");
  expect_refused(flashmask_reference_forward(nullptr, &both.p, &inputs, o, lse), FLASHMASK_INVALID_ARGUMENT,
                 "mask is NULL");
  expect_refused(flashmask_reference_forward(mask.get(), nullptr, &inputs, o, lse), FLASHMASK_INVALID_ARGUMENT,
                 "problem is NULL");
  expect_refused(flashmask_reference_forward(mask.get(), &kProblem, nullptr, o, lse), FLASHMASK_INVALID_ARGUMENT,
                 "inputs is NULL");
}

}  // namespace
}  // namespace flashmask::c_api
