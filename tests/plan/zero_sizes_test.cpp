// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "flashmask/flashmask.h"
#include "kit/host_tensor.h"
#include "kit/linear_tensors.h"
#include "plan/refusal.h"

/// Every public function where a size is 0: it returns what the formula says, or says what is wrong.
namespace flashmask {
namespace {

using Numbers = std::vector<std::int64_t>;

/// All in which a size is 0.
std::vector<MaskShape> empty_shapes() {
  std::vector<MaskShape> shapes;
  for (const std::int64_t batch : {0, 2})
    for (const std::int64_t heads : {0, 3})
      for (const std::int64_t rows : {0, 5})
        for (const std::int64_t columns : {0, 5})
          if (batch * heads * rows * columns == 0) shapes.push_back({batch, heads, rows, columns});
  return shapes;
}

std::string text(const MaskShape& shape) {
  return std::to_string(shape.batch) + " x " + std::to_string(shape.heads) + " x " + std::to_string(shape.rows) +
         " x " + std::to_string(shape.columns);
}

using MakeMask = std::function<Mask(const MaskShape&)>;
using UseMask = std::function<void(const Mask&)>;

/// All that make a mask of any shape from scores, of which there are none.
const std::vector<std::pair<std::string, MakeMask>>& makers() {
  static const std::vector<std::pair<std::string, MakeMask>> all = {
      {"intervals", [](const MaskShape& s) { return Mask(IntervalMask(s), "intervals"); }},
      {"from_dense", [](const MaskShape& s) { return from_dense(s, {}); }},
      {"from_dense, strided", [](const MaskShape& s) { return from_dense({.data = nullptr, .shape = s}); }},
      {"from_packed",
       [](const MaskShape& s) {
         const std::int64_t bytes = s.batch * s.heads * s.rows * ((s.columns + 7) / 8);
         return from_packed(s, std::vector<std::uint8_t>(static_cast<std::size_t>(bytes)));
       }},
      {"from_predicate", [](const MaskShape& s) { return from_predicate(s, [](auto...) { return true; }); }},
      {"from_row_ranges",
       [](const MaskShape& s) {
         const std::int64_t values = s.heads * 3 * s.batch * s.rows;
         return from_row_ranges(std::vector<std::int32_t>(static_cast<std::size_t>(values)), s, 3);
       }},
      {"from_startend_row_indices",
       [](const MaskShape& s) {
         const std::int64_t values = s.batch * s.heads * s.columns;
         return from_startend_row_indices(std::vector<std::int32_t>(static_cast<std::size_t>(values)), s, 1, true);
       }},
      {"from_block_map",
       [](const MaskShape& s) {
         const auto blocks = [](std::int64_t tokens) { return (tokens + 15) / 16; };
         const std::int64_t keep = s.batch * s.heads * blocks(s.rows) * blocks(s.columns);
         return from_block_map(BlockMap(s, 16, std::vector<std::uint8_t>(static_cast<std::size_t>(keep), 1)));
       }},
      {"butterfly", [](const MaskShape& s) { return from_block_map(block_maps::butterfly(s, 16)); }},
      {"strided", [](const MaskShape& s) { return from_block_map(block_maps::strided(s, 16, 1)); }},
      {"sliding", [](const MaskShape& s) { return from_block_map(block_maps::sliding(s, 16, 0, 0)); }},
      {"random", [](const MaskShape& s) { return from_block_map(block_maps::random(s, 16, 0, 1)); }},
  };
  return all;
}

TEST(ZeroSizes, OfAMaskAreThoseAskedFor) {
  for (const MaskShape& shape : empty_shapes())
    for (const auto& [name, make] : makers()) {
      SCOPED_TRACE(name + " of " + text(shape));
      const Mask mask = make(shape);
      EXPECT_EQ(mask.shape(), shape);
      EXPECT_EQ(expand(mask), std::vector<std::uint8_t>());
      EXPECT_FALSE(find_misfit(mask).has_value());
    }
}

std::int64_t empty_rows(const MaskShape& shape) { return shape.batch * shape.heads * shape.rows; }

void expect_scheduled(const Mask& mask) {
  for (const Visit visit : {Visit::active, Visit::all}) {
    const TileSchedule tiles = schedule(mask.lowered(), {64, 64}, visit);
    EXPECT_EQ(tiles.counts(), TileCounts{});
    EXPECT_EQ(tiles.mask_shape(), mask.shape());
  }
}

/// A problem of `dims` per head that a mask of this shape fits, with a query head for each mask head.
Problem problem_of(const MaskShape& shape, std::int64_t dims) {
  return {.batch = shape.batch,
          .query_length = shape.rows,
          .key_length = shape.columns,
          .query_heads = shape.heads,
          .kv_heads = shape.heads,
          .head_dim = dims,
          .value_dim = dims};
}

void expect_attended(const Mask& mask) {
  const MaskShape& shape = mask.shape();
  for (const ScoreChange& change : {ScoreChange(), scores::alibi(), scores::bias(), scores::distance()}) {
    Problem p = problem_of(shape, 8);
    p.change = change;
    const check::AttentionTensors t(p, 1, change == ScoreChange() ? check::Sinks::of_heads : check::Sinks::none);
    const Plan planned = plan(mask, p);
    forward(planned, t.forward());
    backward(planned, t.backward());
    for (const check::HostTensor* zero : {&t.o, &t.grad_q, &t.grad_k, &t.grad_v})
      for (std::int64_t i = 0; i < zero->size(); ++i) EXPECT_EQ(zero->at(i), 0);
    for (std::int64_t i = 0; i < t.lse.size(); ++i)
      EXPECT_EQ(t.lse.at(i),
                t.sinks ? t.sinks->at(i / shape.rows % shape.heads) : -std::numeric_limits<float>::infinity());
    for (std::int64_t i = 0; t.grad_bias && i < t.grad_bias->size(); ++i) EXPECT_EQ(t.grad_bias->at(i), 0);
    // The sum over rows of the derivative of lse by the sink, which is 1.
    for (std::int64_t head = 0; t.grad_sinks && head < shape.heads; ++head) {
      double sum = 0;
      for (std::int64_t i = 0; i < shape.batch * shape.rows; ++i)
        sum += t.grad_lse.at((i / shape.rows * shape.heads + head) * shape.rows + i % shape.rows);
      EXPECT_NEAR(t.grad_sinks->at(head), sum, 1e-5);
    }
  }
}

void expect_in_a_tree(const Mask& mask) {
  const MaskShape& shape = mask.shape();
  if (shape.rows != shape.columns || shape.heads == 0) {
    refusal([&] { (void)nodes(mask); });
    return;
  }
  EXPECT_EQ(nodes(mask).predecessors, Numbers(static_cast<std::size_t>(shape.batch * shape.columns), -1));
}

/// What each function says of a mask without scores.
const std::vector<std::pair<std::string, UseMask>>& uses() {
  static const std::vector<std::pair<std::string, UseMask>> all = {
      {"explain",
       [](const Mask& mask) {
         const Explanation told = explain(mask);
         EXPECT_EQ(told.visible_pairs, 0);
         EXPECT_EQ(told.empty_rows, empty_rows(mask.shape()));
         EXPECT_EQ(told.tiles, TileCounts{});
         EXPECT_TRUE(std::isfinite(told.density) && std::isfinite(told.waste));
         EXPECT_FALSE(to_string(told).empty());
       }},
      {"explain, invariant", [](const Mask& mask) { EXPECT_EQ(explain(mask, {}, true).visible_pairs, 0); }},
      {"draw",
       [](const Mask& mask) {
         if (mask.shape().batch * mask.shape().heads > 0)
           EXPECT_NO_THROW((void)draw(mask));
         else
           refusal([&] { (void)draw(mask); });
       }},
      {"pack, unpack",
       [](const Mask& mask) {
         std::vector<std::byte> bytes(packed_bytes(mask));
         pack(mask, bytes);
         EXPECT_EQ(unpack(bytes).shape(), mask.shape());
       }},
      {"&, |, ~",
       [](const Mask& mask) {
         EXPECT_EQ((mask & mask).shape(), mask.shape());
         EXPECT_EQ((mask | mask).shape(), mask.shape());
         EXPECT_EQ((~mask).shape(), mask.shape());
       }},
      {"stack_batch, stack_heads",
       [](const Mask& mask) {
         const std::vector<Mask> two = {mask, mask};
         EXPECT_EQ(stack_batch(two).shape().batch, 2 * mask.shape().batch);
         EXPECT_EQ(stack_heads(two).shape().heads, 2 * mask.shape().heads);
       }},
      {"lower",
       [](const Mask& mask) {
         for (const MaskForm form : {MaskForm::intervals, MaskForm::bits}) EXPECT_EQ(lower(mask, form).form(), form);
       }},
      {"slice",
       [](const Mask& mask) {
         EXPECT_EQ(slice(mask, {}, {}).shape().rows, 0);
         const std::vector<Span> rows = {{0, mask.shape().rows}}, columns = {{0, mask.shape().columns}};
         EXPECT_EQ(slice(mask, rows, columns).shape(), mask.shape());
       }},
      {"to_row_ranges",
       [](const Mask& mask) {
         const RowRanges found = to_row_ranges(mask);
         EXPECT_EQ(found.values, std::vector<std::int32_t>(static_cast<std::size_t>(empty_rows(mask.shape()))));
       }},
      {"to_startend_row_indices",
       [](const Mask& mask) {
         const StartEndRowIndices found = to_startend_row_indices(lower(mask, MaskForm::intervals).intervals());
         EXPECT_EQ(from_startend_row_indices(found.values, found.shape, found.vectors, found.causal).shape(),
                   mask.shape());
       }},
      {"nodes", expect_in_a_tree},
      {"schedule", expect_scheduled},
      {"reorder",
       [](const Mask& mask) {
         const Reordering found = reorder(mask);
         EXPECT_FALSE(found.gained);
         EXPECT_EQ(permute(mask, found.rows, found.columns).shape(), mask.shape());
       }},
      {"drop_queries", [](const Mask& mask) { EXPECT_EQ(masks::drop_queries(mask, {}).shape(), mask.shape()); }},
      {"partition, needs, loads, predict",
       [](const Mask& mask) {
         const MaskShape& shape = mask.shape();
         if (shape.rows != shape.columns) {
           refusal([&] { partition(mask, 2); });
           return;
         }
         for (const Division division : {Division::balanced, Division::contiguous, Division::zigzag}) {
           const Partition shared = partition(mask, 2, {.division = division});
           EXPECT_EQ(shared.tokens(), shape.rows);
           const std::vector<Need> found = needs(shared, mask);
           EXPECT_EQ(found, std::vector<Need>());
           (void)local_columns(shared, found, 1);
           std::int64_t tiles = 0;
           const std::vector<RankLoad> split = loads(shared, mask);
           for (const RankLoad& load : split) tiles += load.tiles;
           EXPECT_EQ(tiles, 0);
           EXPECT_GE(predict(split, shape, {}).total(), 0);
         }
       }},
      {"plan, forward, backward", expect_attended},
  };
  return all;
}

TEST(ZeroSizes, OfAMaskAreTakenByEveryFunction) {
  for (const MaskShape& shape : empty_shapes())
    for (const auto& [maker, make] : makers()) {
      if (maker != "intervals" && maker != "from_packed" && maker != "from_block_map") continue;  // one of each form
      const Mask mask = make(shape);
      for (const auto& [name, use] : uses()) {
        SCOPED_TRACE(name + ": " + maker + " of " + text(shape));
        EXPECT_NO_THROW(use(mask));
      }
    }
}

/// Masks that differ from the other one in what is empty.
TEST(ZeroSizes, OfWhatBuildersAreGivenChangeNothingElse) {
  using namespace masks;
  const std::vector<std::tuple<std::string, Mask, Mask>> cases = {
      {"full", full(0, 3), Mask(IntervalMask({1, 1, 0, 3}), "")},
      {"causal", causal(3, 0), Mask(IntervalMask({1, 1, 3, 0}), "")},
      {"sliding_window", sliding_window(0, 4, 1), full(0, 4)},
      {"window", window(4, 4, 0, 0), from_pairs(4, 4, std::vector<VisiblePair>{{0, 0}, {1, 1}, {2, 2}, {3, 3}})},
      {"causal_document", causal_document({0, 2, 0, 1}, 4), causal_document({2, 1}, 4)},
      {"causal_document of pairs", causal_document({0, 2, 3, 0}, {4, 2, 0, 0}),
       from_pairs(5, 6, std::vector<VisiblePair>{{0, 4}, {1, 4}, {1, 5}})},
      {"document", document({0, 2, 0}, 4), document({2}, 4)},
      {"document of pairs", document({}, {}), full(0, 0)},
      {"sliding_window_document", sliding_window_document({0, 3}, 3, 1), sliding_window_document({3}, 3, 1)},
      {"shared_question", shared_question({{0, {}}, {2, {0, 1}}}, 3), causal(3, 3)},
      {"global_sliding_window", global_sliding_window(3, 0, 0, 0), window(3, 3, 0, 0)},
      {"causal_blockwise", causal_blockwise({}, 0), full(0, 0)},
      {"prefix_lm_document", prefix_lm_document({0, 3}, {0, 0}, 3), causal(3, 3)},
      {"prefix_lm_causal", prefix_lm_causal(3, 0), causal(3, 3)},
      {"qk_sparse_segments", qk_sparse_segments(3, {{1, 1}}), causal(3, 3)},
      {"hash_sparse_sorted", hash_sparse_sorted({}, {{0, 0}, {0, 1}}), full(0, 2)},
      {"random_eviction", random_eviction(0, {}, 1), full(0, 0)},
      {"tree", tree({-1, 0, 1}, {2, 0, 1}, 3).mask, causal(3, 3)},
      {"tree as given", tree({-1, 0, 1}, {2, 0, 1}, 3, TreeOrder::as_given).mask, causal(3, 3)},
      {"tree of none", tree({}, {}, 0).mask, full(0, 0)},
      {"bidirectional_spans", bidirectional_spans(3, {{1, 1}}), causal(3, 3)},
      {"block_diffusion", block_diffusion(0, 4), full(0, 0)},
      {"dilated_window", dilated_window(3, 3, 0, 0, 2), window(3, 3, 0, 0)},
      {"global_tokens", global_tokens(3, {}, 0, 0), window(3, 3, 0, 0)},
      {"big_bird", big_bird(0), full(0, 0)},
      {"neighbourhood of one token", neighbourhood({}), full(1, 1)},
      {"strided_factorised", strided_factorised(0, 2), full(0, 0)},
      {"fixed_factorised", fixed_factorised(0, 2, 1), full(0, 0)},
      {"scfa_hash_sparse", scfa_hash_sparse({}, {0, 1}, 1), full(0, 2)},
      {"scfa_qk_sparse", scfa_qk_sparse({1, 1}, {}, 1), full(2, 0)},
      {"tree_in_order", tree_in_order({}, 0, 4), full(0, 4)},
      {"medusa_tree", medusa_tree({}, 0), full(0, 0)},
      {"graph", graph(0, {}), full(0, 0)},
      {"from_pairs", from_pairs(0, 3, {}), full(0, 3)},
      {"from_csr", from_csr(0, 3, Numbers{0}, {}), full(0, 3)},
  };
  for (const auto& [name, found, expected] : cases) {
    EXPECT_EQ(found.shape(), expected.shape()) << name;
    EXPECT_EQ(expand(found), expand(expected)) << name;
  }
  EXPECT_EQ(random_eviction(3, {}, 0).shape(), (MaskShape{1, 0, 3, 3}));
  EXPECT_EQ(medusa_parents({}), Numbers());
}

/// Where 0 has no meaning.
TEST(ZeroSizes, AreRefusedWhereNothingCouldBeMeant) {
  using namespace masks;
  const Mask mask = causal(4, 4);
  const MaskShape shape = mask.shape();
  const std::vector<std::pair<std::string, std::function<void()>>> calls = {
      {"sliding_window", [&] { sliding_window(4, 4, 0); }},
      {"sliding_window_document", [&] { sliding_window_document({4}, 4, 0); }},
      {"block_diffusion", [&] { block_diffusion(4, 0); }},
      {"dilated_window", [&] { dilated_window(4, 4, 1, 1, 0); }},
      {"big_bird", [&] { big_bird(4, {.block = 0}); }},
      {"neighbourhood",
       [&] {
         neighbourhood({{0, 1, 1}});
       }},
      {"neighbourhood",
       [&] {
         neighbourhood({{4, 0, 1}});
       }},
      {"neighbourhood",
       [&] {
         neighbourhood({{4, 1, 0}});
       }},
      {"strided_factorised", [&] { strided_factorised(4, 0); }},
      {"fixed_factorised", [&] { fixed_factorised(4, 0, 0); }},
      {"scfa_hash_sparse", [&] { scfa_hash_sparse({1}, {1}, 0); }},
      {"scfa_qk_sparse", [&] { scfa_qk_sparse({1}, {1}, 0); }},
      {"random_eviction", [&] { random_eviction(1, {1}, 0); }},
      {"from_csr", [&] { from_csr(0, 3, {}, {}); }},
      {"reverse_cuthill_mckee", [&] { reverse_cuthill_mckee({}, {}); }},
      {"from_row_ranges", [&] { from_row_ranges({}, shape, 0); }},
      {"to_row_ranges", [&] { to_row_ranges(mask, 0); }},
      {"from_startend_row_indices", [&] { from_startend_row_indices({}, shape, 0, true); }},
      {"BlockMap", [&] { BlockMap(shape, 0, {}); }},
      {"butterfly", [&] { block_maps::butterfly(shape, 0); }},
      {"strided", [&] { block_maps::strided(shape, 16, 0); }},
      {"best", [&] { block_maps::best(shape, 16, {}, 1); }},
      {"at_least", [&] { block_maps::at_least(shape, 16, {}, 0); }},
      {"stack_batch", [&] { stack_batch({}); }},
      {"stack_heads", [&] { stack_heads({}); }},
      {"draw", [&] { (void)draw(mask, {.width = 0}); }},
      {"explain",
       [&] {
         explain(mask, {0, 64});
       }},
      {"schedule",
       [&] {
         schedule(mask.lowered(), {64, 0});
       }},
      {"classify",
       [&] {
         classify(mask.lowered(), 0, 0, {0, 64}, 0, 0);
       }},
      {"reorder",
       [&] {
         reorder(mask, {0, 0});
       }},
      {"partition", [&] { partition(mask, 0); }},
      {"partition", [&] { partition(std::span<const WeightedMask>(), std::vector<std::int32_t>{2}); }},
      {"partition", [&] { partition(mask, 2, {.tile = 0}); }},
      {"partition", [&] { partition(mask, 2, {.flops_per_ns = 0}); }},
      {"partition", [&] { partition(mask, 2, {.bytes_per_ns = 0}); }},
      {"partition", [&] { partition(mask, 2, {.kv_heads = 0}); }},
      {"Partition", [&] { Partition(4, 0, {}); }},
      {"Partition", [&] { Partition(0, 1, {}, 0); }},
      {"visible",
       [&] {
         (void)Mask(IntervalMask({1, 0, 4, 4}), "").visible(0, 0, 0, 0);
       }},
      {"head_dim", [&] { plan(mask, {.query_length = 4, .key_length = 4, .head_dim = 0, .value_dim = 8}); }},
      {"value_dim", [&] { plan(mask, {.query_length = 4, .key_length = 4, .head_dim = 8, .value_dim = 0}); }},
      {"key_dim", [&] { linear_plan(mask, {.length = 4, .key_dim = 0, .value_dim = 8}); }},
      {"no heads",
       [&] {
         linear_plan(Mask(IntervalMask({1, 0, 4, 4}), ""), {.length = 4, .key_dim = 8, .value_dim = 8});
       }},
      {"contiguous", [&] { contiguous(nullptr, DType::f32, {}); }},
      {"merge", [&] { merge({}); }},
      {"merge_backward", [&] { merge_backward({}); }},
      {"unpack", [&] { unpack({}); }},
  };
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name);
    EXPECT_NE(refusal(call), "");
  }
}

TEST(ZeroSizes, OfLinearAttentionAreThoseOfItsTensors) {
  for (const std::int64_t batch : {0, 2})
    for (const std::int64_t length : {0, 5})
      for (const std::int64_t heads : {0, 2}) {
        SCOPED_TRACE(std::to_string(batch) + ", " + std::to_string(length) + ", " + std::to_string(heads));
        const Mask mask = masks::causal(length, length);
        const LinearPlan planned = linear_plan(
            mask, {.batch = batch, .length = length, .heads = heads, .key_heads = heads, .key_dim = 8, .value_dim = 8});
        const std::int64_t documents = length == 0 ? 0 : batch;
        EXPECT_EQ(planned.roots(), documents);
        EXPECT_EQ(std::ssize(planned.nodes().begins), documents);
        const check::LinearTensors tensors(planned, 1, check::mild_gates(), true);
        linear_forward(planned, tensors.forward());
        linear_backward(planned, tensors.backward());
        for (const check::LinearError& error : check::linear_errors(planned, mask, tensors))
          EXPECT_LE(error.worst, 2e-5) << error.name;
      }
}

TEST(ZeroSizes, OfDropoutHaveNoDecisions) {
  for (const MaskShape& shape : empty_shapes()) {
    Problem p = problem_of(shape, 8);
    p.dropout = 0.5;
    const std::vector<std::int32_t> place = pack({}, p);
    EXPECT_EQ(expand_dropout(p, {}, place), std::vector<std::uint8_t>());
    EXPECT_EQ(dropout_factors(p, {}, place), std::vector<double>());
  }
}

/// Without dims lse are merged all the same: two that are equal give log 2 more.
TEST(ZeroSizes, OfWhatIsMergedLeaveTheRest) {
  for (const Numbers& shape : {Numbers{0, 3, 2, 4}, {2, 0, 2, 4}, {2, 3, 0, 4}, {2, 3, 2, 0}}) {
    check::HostTensor o(DType::f32, shape), lse(DType::f32, {shape[0], shape[2], shape[1]});
    check::HostTensor merged(DType::f32, {shape[0], shape[2], shape[1]});
    for (std::int64_t i = 0; i < lse.size(); ++i) lse.set(i, 1.5F);
    const MergePart part{o.view(), lse.view()};
    merge({.parts = {part, part}, .o = o.view(), .lse = merged.view()});
    for (std::int64_t i = 0; i < merged.size(); ++i) EXPECT_NEAR(merged.at(i), 1.5 + std::log(2.0), 1e-6);
  }
}

TEST(ZeroSizes, OfTheReferenceGiveWhatTheFormulaSays) {
  for (const MaskShape& shape : empty_shapes()) {
    const Problem p = problem_of(shape, 1);
    const std::vector<double> queries(static_cast<std::size_t>(empty_rows(shape)), 1.0),
        keys(static_cast<std::size_t>(shape.batch * shape.heads * shape.columns), 1.0);
    const Mask mask(IntervalMask(shape), "");
    const reference::Inputs in{queries, keys, keys};
    const reference::Outputs out = reference::forward(p, mask, in);
    EXPECT_EQ(out.o, std::vector<double>(queries.size()));
    EXPECT_EQ(out.lse, std::vector<double>(queries.size(), -std::numeric_limits<double>::infinity()));
    const reference::Gradients grad = reference::backward(p, mask, in, queries, {});
    EXPECT_EQ(grad.q, std::vector<double>(queries.size()));
    EXPECT_EQ(grad.k, std::vector<double>(keys.size()));
    EXPECT_EQ(grad.v, std::vector<double>(keys.size()));
  }
}

}  // namespace
}  // namespace flashmask
