// SPDX-License-Identifier: Apache-2.0
#include "c_api/sized_struct.h"

#include <array>
#include <functional>
#include <vector>

#include "c_api/handles.h"

namespace flashmask::c_api {

/// flashmask_span as it would be with a size: of this library, of an older one and of a newer one.
struct Span {
  std::uint64_t struct_size;
  std::int64_t begin;
  std::int64_t end;
};
struct OlderSpan {
  std::uint64_t struct_size;
  std::int64_t begin;
};
struct NewerSpan {
  std::uint64_t struct_size;
  std::int64_t begin;
  std::int64_t end;
  std::int64_t step;
  std::int64_t last;
};
template <>
struct Layout<Span> {
  static constexpr const char* name = "flashmask_span";
};

namespace {

/// The struct of a caller, in front of memory that is not for the library, as what the library takes it for.
template <typename Caller>
struct Passed {
  Caller given;
  std::array<std::uint8_t, 32> behind = untouched();

  static std::array<std::uint8_t, 32> untouched() {
    std::array<std::uint8_t, 32> bytes;
    bytes.fill(0xab);
    return bytes;
  }
  template <typename Struct>
  Struct* as() {
    return reinterpret_cast<Struct*>(this);
  }
};

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::invalid_argument);
    return error.what();
  }
  return "";
}

TEST(SizedStruct, OfAnOlderCallerEndsWithZeros) {
  const Span read = read_struct(Passed<OlderSpan>{{sizeof(OlderSpan), 3}}.as<Span>(), "span");
  EXPECT_EQ(read.begin, 3);
  EXPECT_EQ(read.end, 0);
}

TEST(SizedStruct, OfANewerCallerIsTakenWhileItsNewFieldsAreZero) {
  NewerSpan given{};
  given.struct_size = sizeof(NewerSpan);
  given.begin = 3;
  given.end = 5;
  const Span read = read_struct(Passed<NewerSpan>{given}.as<Span>(), "span");
  EXPECT_EQ(read.begin, 3);
  EXPECT_EQ(read.end, 5);
  given.last = std::int64_t{1} << 56;  // the last byte alone
  EXPECT_EQ(refusal([&] { read_struct(Passed<NewerSpan>{given}.as<Span>(), "span"); }),
            "flashmask_span has 16 bytes that this library (" + std::string(flashmask_version()) +
                ") does not know and that are not 0; leave fields that are newer than it at 0, or load a newer one");
}

TEST(SizedStruct, IsWrittenAsFarAsAnOlderCallerHasIt) {
  Passed<OlderSpan> to{{sizeof(OlderSpan), -1}};
  write_struct(Span{sizeof(Span), 3, 5}, to.as<Span>(), "span");
  EXPECT_EQ(to.given.struct_size, sizeof(OlderSpan));
  EXPECT_EQ(to.given.begin, 3);
  EXPECT_EQ(to.behind, to.untouched());
}

TEST(SizedStruct, IsWrittenAsFarAsTheLibraryKnowsIt) {
  Passed<NewerSpan> to{{sizeof(NewerSpan), -1, -1, -1, -1}};
  write_struct(Span{sizeof(Span), 3, 5}, to.as<Span>(), "span");
  EXPECT_EQ(to.given.struct_size, sizeof(NewerSpan));
  EXPECT_EQ(to.given.begin, 3);
  EXPECT_EQ(to.given.end, 5);
  EXPECT_EQ(to.given.step, -1);
  EXPECT_EQ(to.given.last, -1);
}

TEST(SizedStruct, OfASizeThatNobodySetIsRefused) {
  for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{7}, std::uint64_t{4097}, ~std::uint64_t{0}}) {
    Span span{size, 3, 5};
    const std::string expected = "span.struct_size is " + std::to_string(size) +
                                 "; set it to sizeof(flashmask_span), as FLASHMASK_INIT(flashmask_span) does";
    EXPECT_EQ(refusal([&] { read_struct(&span, "span"); }), expected);
    EXPECT_EQ(refusal([&] { write_struct(Span{}, &span, "span"); }), expected);
    EXPECT_EQ(span.begin, 3);
  }
}

TEST(SizedStruct, MayBeNullWhereThatMeansZero) {
  EXPECT_EQ(read_optional_struct<Span>(nullptr, "span").begin, 0);
  const Span given{sizeof(Span), 3, 5};
  EXPECT_EQ(read_optional_struct(&given, "span").end, 5);
  EXPECT_NE(refusal([&] { to_problem(nullptr); }).find("problem is NULL"), std::string::npos);
}

TEST(SizedStructs, LieAsFarApartAsTheCallersSize) {
  using Newer = std::array<NewerSpan, 2>;
  Newer newer{{{sizeof(NewerSpan), 1, 2, 0, 0}, {sizeof(NewerSpan), 3, 4, 0, 0}}};
  const std::vector<Span> cut = read_structs(Passed<Newer>{newer}.as<Span>(), 2, "spans");
  ASSERT_EQ(cut.size(), 2U);
  EXPECT_EQ(cut[1].begin, 3);
  EXPECT_EQ(cut[1].end, 4);
  newer[1].step = 1;
  EXPECT_NE(refusal([&] { read_structs(Passed<Newer>{newer}.as<Span>(), 2, "spans"); }).find("16 bytes"),
            std::string::npos);

  Passed<std::array<OlderSpan, 2>> older{{{{sizeof(OlderSpan), 1}, {sizeof(OlderSpan), 3}}}};
  const std::vector<Span> filled = read_structs(older.as<Span>(), 2, "spans");
  EXPECT_EQ(filled[1].begin, 3);
  EXPECT_EQ(filled[1].end, 0);
  EXPECT_TRUE(read_structs<Span>(nullptr, 0, "spans").empty());
}

TEST(SizedStructs, HaveOneSize) {
  std::array<Span, 2> spans{{{sizeof(Span), 1, 2}, {sizeof(OlderSpan), 3, 4}}};
  EXPECT_EQ(refusal([&] { read_structs(spans.data(), 2, "spans"); }),
            "spans[1].struct_size is 16 but that of spans[0] is 24; set all to the same");
  spans[1].struct_size = 0;
  EXPECT_NE(refusal([&] { read_structs(spans.data(), 2, "spans"); }).find("spans[1].struct_size is 0"),
            std::string::npos);
}

TEST(SizedStruct, BeginsWithItsSizeInCppToo) {
  const flashmask_problem problem = FLASHMASK_INIT(flashmask_problem);
  EXPECT_EQ(problem.struct_size, sizeof(flashmask_problem));
  EXPECT_EQ(problem.batch, 0);
  EXPECT_EQ(problem.dropout, 0);
}

TEST(SizedStruct, OfTensorsMayBeOlderThanSinks) {
  flashmask_forward_tensors tensors = FLASHMASK_INIT(flashmask_forward_tensors);
  tensors.struct_size = offsetof(flashmask_forward_tensors, sinks);
  tensors.sinks.rank = 1;
  EXPECT_EQ(read_struct(&tensors, "tensors").sinks.rank, 0);
}

TEST(SizedStruct, OfAProblemMayBeOlderThanDropout) {
  flashmask_problem problem = FLASHMASK_INIT(flashmask_problem);
  problem.struct_size = offsetof(flashmask_problem, dropout);
  problem.head_dim = 64;
  problem.dropout = 0.5;
  EXPECT_EQ(to_problem(&problem).head_dim, 64);
  EXPECT_EQ(to_problem(&problem).dropout, 0);
}

/// A struct of all zeros, its size too.
template <typename Struct>
Struct* zeros() {
  static Struct nothing;
  nothing = {};
  return &nothing;
}

TEST(SizedStruct, IsAskedForByEveryCall) {
  const MaskHandle causal = make(flashmask_mask_causal, 64, 64);
  flashmask_problem problem = FLASHMASK_INIT(flashmask_problem);
  problem.batch = problem.query_heads = problem.kv_heads = 1;
  problem.query_length = problem.key_length = 64;
  problem.head_dim = problem.value_dim = 16;
  flashmask_plan* plan = nullptr;
  ASSERT_EQ(flashmask_plan_create(causal.get(), &problem, nullptr, &plan), FLASHMASK_OK);
  const PlanHandle owner(plan);
  flashmask_reordering* reordering = nullptr;
  ASSERT_EQ(flashmask_mask_reorder(causal.get(), 16, 16, &reordering), FLASHMASK_OK);
  const ReorderingHandle reordered(reordering);
  problem.device_type = FLASHMASK_CUDA;

  const flashmask_forward_tensors forward = FLASHMASK_INIT(flashmask_forward_tensors);
  const flashmask_backward_tensors backward = FLASHMASK_INIT(flashmask_backward_tensors);
  flashmask_plan_options options = FLASHMASK_INIT(flashmask_plan_options);
  options.executor = zeros<flashmask_executor>();
  flashmask_mask* mask = nullptr;
  std::size_t size = 0;
  const auto expect_asked = [](flashmask_status status, const std::string& type) {
    expect_refused(status, FLASHMASK_INVALID_ARGUMENT, "struct_size is 0; set it to sizeof(" + type + ")");
  };
  expect_asked(flashmask_mask_shared_question(zeros<flashmask_shared_question>(), 1, 9, &mask),
               "flashmask_shared_question");
  expect_asked(flashmask_mask_big_bird(9, zeros<flashmask_big_bird>(), &mask), "flashmask_big_bird");
  expect_asked(flashmask_mask_neighbourhood(zeros<flashmask_neighbourhood_axis>(), 1, &mask),
               "flashmask_neighbourhood_axis");
  expect_asked(
      flashmask_mask_to_startend_row_indices(causal.get(), nullptr, 0, zeros<flashmask_startend_row_indices>()),
      "flashmask_startend_row_indices");
  expect_asked(flashmask_mask_explain(causal.get(), 16, 16, zeros<flashmask_explanation>()), "flashmask_explanation");
  expect_asked(flashmask_mask_draw(causal.get(), zeros<flashmask_draw_options>(), nullptr, 0, &size),
               "flashmask_draw_options");
  expect_asked(flashmask_reordering_get(reordering, zeros<flashmask_reordering_view>()), "flashmask_reordering_view");
  expect_asked(flashmask_plan_reordering(owner.get(), zeros<flashmask_reordering_view>()), "flashmask_reordering_view");
  expect_asked(flashmask_plan_create(causal.get(), zeros<flashmask_problem>(), nullptr, &plan), "flashmask_problem");
  expect_asked(flashmask_plan_create(causal.get(), &problem, zeros<flashmask_plan_options>(), &plan),
               "flashmask_plan_options");
  expect_asked(flashmask_plan_create(causal.get(), &problem, &options, &plan), "flashmask_executor");
  expect_asked(flashmask_plan_create_at(causal.get(), &problem, nullptr, zeros<flashmask_plan_place>(), &plan),
               "flashmask_plan_place");
  expect_asked(flashmask_device_mask_plan_bytes(zeros<flashmask_device_mask>(), &problem, nullptr, &size),
               "flashmask_device_mask");
  expect_asked(flashmask_dropout_expand(zeros<flashmask_problem>(), 0, 0, nullptr, 0), "flashmask_problem");
  expect_asked(flashmask_forward(owner.get(), zeros<flashmask_forward_tensors>(), nullptr),
               "flashmask_forward_tensors");
  expect_asked(flashmask_forward(owner.get(), &forward, zeros<flashmask_execution>()), "flashmask_execution");
  expect_asked(flashmask_backward(owner.get(), zeros<flashmask_backward_tensors>(), nullptr),
               "flashmask_backward_tensors");
  expect_asked(flashmask_backward(owner.get(), &backward, zeros<flashmask_execution>()), "flashmask_execution");
  expect_asked(flashmask_kernel_get(0, zeros<flashmask_kernel_info>()), "flashmask_kernel_info");
  expect_asked(flashmask_merge(zeros<flashmask_merge_tensors>(), nullptr), "flashmask_merge_tensors");
  expect_asked(flashmask_merge_backward(zeros<flashmask_merge_gradients>(), nullptr), "flashmask_merge_gradients");
  problem.device_type = FLASHMASK_CPU;
  expect_asked(
      flashmask_reference_forward(causal.get(), &problem, zeros<flashmask_reference_inputs>(), nullptr, nullptr),
      "flashmask_reference_inputs");
}

}  // namespace
}  // namespace flashmask::c_api
