// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <thread>
#include <vector>

#include "flashmask/attention.h"
#include "flashmask/builders.h"
#include "jax/fake_xla.h"
#include "jax/plan_cache.h"

extern "C" {
XLA_FFI_Handler flashmask_jax_forward_cpu, flashmask_jax_backward_cpu, flashmask_jax_forward_cuda,
    flashmask_jax_instantiate_cuda, flashmask_jax_linear_instantiate_cuda, flashmask_jax_refuse_rocm;
}

namespace flashmask::jax {
namespace {

constexpr std::int64_t kTokens = 6, kDim = 8;

/// A forward of one head under row indices in which token i sees the tokens of its document up to itself.
struct Forward {
  explicit Forward(std::int64_t first_document = 2) : rows(kTokens) {
    for (std::int64_t i = 0; i < kTokens; ++i)
      rows[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i < first_document ? first_document : kTokens);
    for (std::size_t i = 0; i < q.size(); ++i) q[i] = 0.1F * static_cast<float>(i % 7) - 0.2F;
    for (int i = 0; i < 3; ++i) call.operand(XLA_FFI_DataType_F32, q.data(), {1, kTokens, 1, kDim});
    call.operand(XLA_FFI_DataType_S32, rows.data(), {1, 1, kTokens, 1});
    call.result(XLA_FFI_DataType_F32, o.data(), {1, kTokens, 1, kDim});
    call.result(XLA_FFI_DataType_F32, lse.data(), {1, 1, kTokens});
    for (const char* name : {"deterministic", "distance_origin", "dtype", "has_alibi_slopes", "has_bias",
                             "has_dropout_words", "has_key_positions", "has_operand0", "has_operand1", "has_operand2",
                             "has_operand3", "has_plan", "has_query_positions", "has_sinks", "heads_first", "invariant",
                             "mask_name_high", "mask_name_low", "most_documents"})
      call.integers[name] = 0;
    call.integers["causal"] = call.integers["has_mask"] = 1;
    call.numbers = {{"scale", 0.5}, {"dropout", 0.0}};
    call.texts = {{"change", ""}};
  }

  /// The outputs of the library's own call.
  std::vector<float> expected(std::int64_t first_document = 2, const ScoreChange& change = {}) {
    std::vector<float> own(q.size()), own_lse(kTokens);
    const auto view = [](std::vector<float>& x) { return contiguous(x.data(), DType::f32, {1, kTokens, 1, kDim}); };
    const auto made =
        plan(masks::causal_document({first_document, kTokens - first_document}, kTokens), {.query_length = kTokens,
                                                                                           .key_length = kTokens,
                                                                                           .head_dim = kDim,
                                                                                           .value_dim = kDim,
                                                                                           .scale = 0.5,
                                                                                           .change = change});
    forward(made, {view(q), view(q), view(q), view(own), contiguous(own_lse.data(), DType::f32, {1, 1, kTokens})});
    return own;
  }

  XLA_FFI_ExecutionContext context{};
  std::vector<std::int32_t> rows;
  std::vector<float> q = std::vector<float>(kTokens * kDim), o = q, lse = std::vector<float>(kTokens);
  FakeCall call{context};
};

TEST(Handlers, TellTheirVersion) {
  XLA_FFI_Metadata metadata{};
  XLA_FFI_Metadata_Extension asked{{XLA_FFI_Extension_Base_STRUCT_SIZE, XLA_FFI_Extension_Metadata, nullptr},
                                   &metadata};
  XLA_FFI_CallFrame frame{};
  frame.extension_start = &asked.extension_base;
  metadata.api_version.minor_version = 99;
  EXPECT_EQ(flashmask_jax_forward_cpu(&frame), nullptr);
  EXPECT_EQ(metadata.api_version.major_version, 0);
  EXPECT_EQ(metadata.api_version.minor_version, 1);  // what every jaxlib from 0.6.2 on takes
  EXPECT_EQ(metadata.traits, 0U);                    // not to be captured: scratch is freed when a call returns
}

TEST(Handlers, ComputeAttention) {
  for (const std::int64_t first : {2, 4, 2}) {
    Forward given(first);
    EXPECT_EQ(given.call.run(flashmask_jax_forward_cpu), "");
    EXPECT_EQ(given.o, given.expected(first));
  }
}

TEST(Handlers, ChangeScoresAsTheirTextSays) {
  for (const double cap : {0.01, 0.02, 0.01}) {  // plans are kept apart
    Forward given;
    given.call.texts["change"] = scores::softcap(cap).text();
    EXPECT_EQ(given.call.run(flashmask_jax_forward_cpu), "");
    EXPECT_EQ(given.o, given.expected(2, scores::softcap(cap)));
  }
}

TEST(Handlers, ServeSeveralThreads) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([i] {
      for (int n = 0; n < 20; ++n) {
        Forward given(1 + (i + n) % 5);
        ASSERT_EQ(given.call.run(flashmask_jax_forward_cpu), "");
        ASSERT_EQ(given.o, given.expected(1 + (i + n) % 5));
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Handlers, SayWhatIsWrong) {
  Forward without_attribute;
  without_attribute.call.integers.erase("causal");
  EXPECT_NE(without_attribute.call.run(flashmask_jax_forward_cpu).find("attribute causal is missing"),
            std::string::npos);
  EXPECT_EQ(without_attribute.call.error_code, XLA_FFI_Error_Code_INTERNAL);

  Forward without_sinks;
  without_sinks.call.integers["has_sinks"] = 1;
  EXPECT_NE(without_sinks.call.run(flashmask_jax_forward_cpu).find("the call has 4 operands"), std::string::npos);

  Forward with_two_vectors;
  with_two_vectors.call.integers["causal"] = 0;
  EXPECT_NE(with_two_vectors.call.run(flashmask_jax_forward_cpu), "");
  EXPECT_EQ(with_two_vectors.call.error_code, XLA_FFI_Error_Code_INVALID_ARGUMENT);
}

TEST(Handlers, RefuseFloat32WhenTheyAreCompiledForAGpu) {
  XLA_FFI_ExecutionContext context;
  FakeCall call(context);
  for (const char* name : {"has_mask", "invariant", "mask_name_high", "mask_name_low", "most_documents"})
    call.integers[name] = 0;
  for (const std::int64_t dtype : {1, 2}) {
    call.integers["dtype"] = dtype;
    EXPECT_EQ(call.run(flashmask_jax_instantiate_cuda), "");
    EXPECT_EQ(call.run(flashmask_jax_linear_instantiate_cuda), "");
  }
  call.integers["dtype"] = 0;
  for (auto* const handler : {flashmask_jax_instantiate_cuda, flashmask_jax_linear_instantiate_cuda})
    EXPECT_NE(call.run(handler).find("q, k and v are float32"), std::string::npos);
  EXPECT_EQ(call.error_code, XLA_FFI_Error_Code_UNIMPLEMENTED);
  EXPECT_EQ(Forward().call.run(flashmask_jax_forward_cuda), "jax: there is no device");
  EXPECT_NE(call.run(flashmask_jax_refuse_rocm).find("the program is compiled for AMD's GPUs"), std::string::npos);
}

TEST(Handlers, RefuseDocumentsThatAGpuCannotCount) {
  XLA_FFI_ExecutionContext context;
  FakeCall call(context);
  call.integers = {{"dtype", 1},          {"has_mask", 1},      {"invariant", 1},
                   {"mask_name_high", 0}, {"mask_name_low", 0}, {"most_documents", 0}};
  EXPECT_NE(call.run(flashmask_jax_instantiate_cuda).find("invariant=True came beside a mask that is traced"),
            std::string::npos);
  EXPECT_EQ(call.error_code, XLA_FFI_Error_Code_UNIMPLEMENTED);
  // What makes it serve: another option, no mask, a mask that is a constant, a number of documents.
  for (const auto& [name, value] :
       {std::pair{"invariant", 0}, {"has_mask", 0}, {"mask_name_low", 7}, {"most_documents", 3}}) {
    FakeCall served(context);
    served.integers = call.integers;
    served.integers[name] = value;
    EXPECT_EQ(served.run(flashmask_jax_instantiate_cuda), "") << name;
  }
}

/// A key whose mask is one number.
PlanKey key_of(const std::int32_t& number) { return {{}, {}, std::as_bytes(std::span(&number, 1))}; }

TEST(PlanCache, FindsPlansByContentsAndKeepsTheNewest) {
  PlanCache cache(2, 100);
  int made = 0;
  const auto find = [&](std::int32_t number, std::size_t bytes) {
    return cache.find_or_make(key_of(number), [&]() -> CachedPlan {
      ++made;
      const Problem problem{.query_length = 4, .key_length = 4, .head_dim = 8, .value_dim = 8};
      return {std::make_shared<const Plan>(plan(masks::causal(4, 4), problem)), bytes};
    });
  };
  const auto first = find(1, 10);
  EXPECT_EQ(find(1, 10), first);
  EXPECT_EQ(made, 1);
  find(2, 10);
  EXPECT_EQ(find(1, 10), first);  // the newest again
  find(3, 10);                    // 2 goes
  EXPECT_EQ(cache.size(), 2U);
  EXPECT_EQ(find(1, 10), first);
  EXPECT_EQ(made, 3);
  find(4, 200);  // more than all may have: alone
  EXPECT_EQ(cache.size(), 1U);
  EXPECT_NE(find(1, 10), first);
  EXPECT_EQ(std::static_pointer_cast<const Plan>(first)->problem().query_length,
            4);  // a plan lives as long as someone holds it
}

}  // namespace
}  // namespace flashmask::jax
