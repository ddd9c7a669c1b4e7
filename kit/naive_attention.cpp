// SPDX-License-Identifier: Apache-2.0
#include "kit/naive_attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "kit/rounding.h"

namespace flashmask::check::naive {
namespace {

/// Element offsets of the vectors of one (batch, head, query).
struct Place {
  const Problem& p;
  std::int64_t batch, head, query;

  std::int64_t kv_head() const { return head / (p.query_heads / p.kv_heads); }
  std::size_t of_query(std::int64_t dim) const {
    return static_cast<std::size_t>(((batch * p.query_length + query) * p.query_heads + head) * dim);
  }
  std::size_t of_key(std::int64_t column, std::int64_t dim) const {
    return static_cast<std::size_t>(((batch * p.key_length + column) * p.kv_heads + kv_head()) * dim);
  }
  std::size_t of_lse() const {
    return static_cast<std::size_t>((batch * p.query_heads + head) * p.query_length + query);
  }
};

float kept(const Place& at, const reference::Inputs& in, std::int64_t column) {
  if (in.dropout.empty()) return 1;
  return static_cast<float>(
      in.dropout[at.of_lse() * static_cast<std::size_t>(at.p.key_length) + static_cast<std::size_t>(column)]);
}

std::vector<std::int64_t> seen_columns(const Place& at, const Mask& mask) {
  const std::int64_t batch = mask.shape().batch == 1 ? 0 : at.batch;
  const std::int64_t head = at.head / (at.p.query_heads / mask.shape().heads);
  std::vector<std::int64_t> seen;
  for (std::int64_t j = 0; j < at.p.key_length; ++j) {
    if (mask.visible(batch, head, at.query, j)) seen.push_back(j);
  }
  return seen;
}

float dot(const double* a, const double* b, std::int64_t count) {
  float sum = 0;
  for (std::int64_t c = 0; c < count; ++c) sum += static_cast<float>(a[c]) * static_cast<float>(b[c]);
  return sum;
}

/// Half the distance between neighbouring numbers, relative to their size.
float unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 0x1p-9F;
    case DType::f16:
      return 0x1p-11F;
    default:
      return 0x1p-24F;
  }
}

/// Index of the row's sink among the sinks of a call.
std::size_t sink_of(const Place& at, const reference::Inputs& in) {
  const bool of_heads = std::ssize(in.sinks) == at.p.query_heads;
  return of_heads ? static_cast<std::size_t>(at.head) : at.of_lse();
}

void softmax(DType dtype, std::vector<float>& scores) {
  if (scores.empty()) return;
  const float largest = std::max(*std::max_element(scores.begin(), scores.end()), std::numeric_limits<float>::lowest());
  float sum = 0;
  for (float& score : scores) sum += score = round_to(dtype, std::exp(score - largest));
  for (float& score : scores) score = sum == 0 ? 0 : round_to(dtype, score / sum);
}

/// Turns scores into probabilities; a sink is one more score, of which only the probability is kept, in row.sink.
void softmax(const Place& at, const reference::Inputs& in, Row& row) {
  if (!in.sinks.empty()) row.p.push_back(static_cast<float>(in.sinks[sink_of(at, in)]));
  softmax(at.p.dtype, row.p);
  if (in.sinks.empty()) return;
  row.sink = row.p.back();
  row.p.pop_back();
}

/// What ALiBi adds to the score of a column, as frameworks add it: in the problem's dtype.
float alibi_of(const Place& at, const reference::Inputs& in, std::int64_t column) {
  const Problem& p = at.p;
  const auto number = [&](std::span<const double> of, std::int64_t length, std::int64_t i) {
    return of[static_cast<std::size_t>(std::ssize(of) == length ? i : at.batch * length + i)];
  };
  double distance = static_cast<double>(at.query + p.key_length - p.query_length - column);
  if (!in.query_positions.empty())
    distance = number(in.query_positions, p.query_length, at.query) - number(in.key_positions, p.key_length, column);
  return round_to(p.dtype, static_cast<float>(-number(in.alibi_slopes, p.query_heads, at.head) * std::abs(distance)));
}

/// Index of what a bias tensor adds to the score of a column; nullopt where it has no entry.
std::optional<std::size_t> bias_of(const Place& at, const reference::Inputs& in, std::int64_t column) {
  const std::array<std::int64_t, 4>& shape = in.bias_shape;
  const std::int64_t distance = at.query + at.p.key_length - at.p.query_length - column + in.bias_origin;
  const std::int64_t entry = at.p.change.bias() == ScoreBias::distances ? distance : column;
  if (!has_bias_tensor(at.p) || entry < 0 || entry >= shape[3]) return std::nullopt;
  const std::int64_t list = at.batch % shape[0] * shape[1] + at.head % shape[1];
  return static_cast<std::size_t>((list * shape[2] + at.query % shape[2]) * shape[3] + entry);
}

/// Takes one step of a change of scores, which adds `bias`; returns its derivative by the score.
float take(const ScoreStep& step, DType dtype, float bias, float& score) {
  const auto number = static_cast<float>(step.number);
  const float before = score;
  switch (step.kind) {
    case ScoreStep::Kind::multiply:
      score = round_to(dtype, before * number);
      return number;
    case ScoreStep::Kind::add:
      score = round_to(dtype, before + bias);
      return 1;
    default:
      break;
  }
  const float y = round_to(dtype, std::tanh(round_to(dtype, before / number)));
  score = round_to(dtype, number * y);
  return round_to(dtype, 1 - round_to(dtype, y * y));
}

/// Takes all steps of a score, and adds it and its derivatives to the row.
void push_changed(const Place& at, const reference::Inputs& in, std::int64_t column, float score, Row& row) {
  const Problem& p = at.p;
  float bias = 0, slope = 1, bias_slope = 0;
  if (p.change.bias() == ScoreBias::alibi) bias = alibi_of(at, in, column);
  if (const auto index = bias_of(at, in, column)) bias = static_cast<float>(in.bias[*index]);
  if (p.change.function() != nullptr) {
    const auto changed = p.change.apply(score, {bias, at.batch, at.head, at.query, column, in.operands});
    row.p.push_back(round_to(p.dtype, static_cast<float>(changed.value)));
    row.slopes.push_back(round_to(p.dtype, static_cast<float>(changed.slope)));
    row.bias_slopes.push_back(round_to(p.dtype, static_cast<float>(changed.bias_slope)));
    return;
  }
  for (const ScoreStep& step : p.change.steps()) {
    const float of_step = take(step, p.dtype, bias, score);
    slope = round_to(p.dtype, slope * of_step);
    bias_slope = step.kind == ScoreStep::Kind::add ? 1 : round_to(p.dtype, bias_slope * of_step);
  }
  row.p.push_back(score);
  row.slopes.push_back(slope);
  row.bias_slopes.push_back(bias_slope);
}

void attend_row(const Place& at, const reference::Inputs& in, Row& row) {
  const Problem& p = at.p;
  for (const std::int64_t j : row.columns) {
    const float score = dot(&in.q[at.of_query(p.head_dim)], &in.k[at.of_key(j, p.head_dim)], p.head_dim);
    push_changed(at, in, j, round_to(p.dtype, round_to(p.dtype, score) * static_cast<float>(p.softmax_scale())), row);
  }
  softmax(at, in, row);
  row.o.assign(static_cast<std::size_t>(p.value_dim), 0);
  for (std::size_t n = 0; n < row.columns.size(); ++n) {
    const double* v = &in.v[at.of_key(row.columns[n], p.value_dim)];
    const float weight = round_to(p.dtype, row.p[n] * kept(at, in, row.columns[n]));
    for (std::size_t c = 0; c < row.o.size(); ++c) row.o[c] += weight * static_cast<float>(v[c]);
  }
  for (float& o : row.o) o = round_to(p.dtype, o);
}

void differentiate_row(const Place& at, const reference::Inputs& in, std::span<const double> grad_o,
                       std::span<const double> grad_lse, Row& row) {
  const Problem& p = at.p;
  const double* grad = &grad_o[at.of_query(p.value_dim)];
  float delta = 0;
  for (std::size_t c = 0; c < row.o.size(); ++c) delta += row.o[c] * static_cast<float>(grad[c]);
  delta = round_to(p.dtype, delta);
  if (!grad_lse.empty()) delta -= static_cast<float>(grad_lse[at.of_lse()]);
  row.grad_sink = -row.sink * delta;
  for (std::size_t c = 0; c < row.o.size(); ++c) {
    const float lost = unit_roundoff(p.dtype) * row.sink * row.o[c] * static_cast<float>(grad[c]);
    row.grad_sink_variance += lost * lost;
  }
  for (std::size_t n = 0; n < row.columns.size(); ++n) {
    const double* v = &in.v[at.of_key(row.columns[n], p.value_dim)];
    const float grad_p = round_to(p.dtype, dot(grad, v, p.value_dim) * kept(at, in, row.columns[n]));
    const float grad_score = round_to(p.dtype, row.p[n] * (grad_p - delta));
    const bool hidden = row.p[n] == 0;  // slopes need not be finite there
    row.grad_biased.push_back(hidden ? 0 : round_to(p.dtype, grad_score * row.bias_slopes[n]));
    row.grad_scores.push_back(hidden ? 0 : round_to(p.dtype, grad_score * row.slopes[n]));
  }
}

void add_scaled(std::vector<float>& sums, std::size_t offset, float factor, const double* x, std::int64_t count) {
  for (std::int64_t c = 0; c < count; ++c) {
    sums[offset + static_cast<std::size_t>(c)] += factor * static_cast<float>(x[c]);
  }
}

std::vector<double> rounded(DType dtype, float scale, const std::vector<float>& sums) {
  std::vector<double> values;
  values.reserve(sums.size());
  for (const float sum : sums) values.push_back(round_to(dtype, scale * sum));
  return values;
}

/// float32 sums of the results that gather from many rows or columns.
struct Sums {
  explicit Sums(const reference::Inputs& in)
      : q(in.q.size()),
        k(in.k.size()),
        v(in.v.size()),
        sinks(in.sinks.size()),
        sink_variances(in.sinks.size()),
        bias(in.bias.size()) {}

  void add(const Place& at, const reference::Inputs& in, std::span<const double> grad_o, const Row& row) {
    const Problem& p = at.p;
    if (!in.sinks.empty()) {
      sinks[sink_of(at, in)] += row.grad_sink;
      sink_variances[sink_of(at, in)] += row.grad_sink_variance;
    }
    for (std::size_t n = 0; n < row.columns.size(); ++n) {
      const std::size_t key = at.of_key(row.columns[n], p.head_dim), query = at.of_query(p.head_dim);
      add_scaled(q, query, row.grad_scores[n], &in.k[key], p.head_dim);
      add_scaled(k, key, row.grad_scores[n], &in.q[query], p.head_dim);
      if (const auto index = bias_of(at, in, row.columns[n])) bias[*index] += row.grad_biased[n];
      const float weight = round_to(p.dtype, row.p[n] * kept(at, in, row.columns[n]));
      add_scaled(v, at.of_key(row.columns[n], p.value_dim), weight, &grad_o[at.of_query(p.value_dim)], p.value_dim);
    }
  }

  std::vector<float> q, k, v, sinks, sink_variances, bias;
};

}  // namespace

Row row(const Problem& problem, const Mask& mask, const reference::Inputs& inputs, std::int64_t batch,
        std::int64_t head, std::int64_t query, std::span<const double> grad_o, std::span<const double> grad_lse) {
  const Place at{problem, batch, head, query};
  Row row{.columns = seen_columns(at, mask),
          .p = {},
          .slopes = {},
          .bias_slopes = {},
          .grad_scores = {},
          .grad_biased = {},
          .o = {}};
  attend_row(at, inputs, row);
  differentiate_row(at, inputs, grad_o, grad_lse, row);
  return row;
}

Results attend(const Problem& problem, const Mask& mask, const reference::Inputs& inputs,
               std::span<const double> grad_o, std::span<const double> grad_lse) {
  Results results{.o = std::vector<double>(grad_o.size()),
                  .grad_q = {},
                  .grad_k = {},
                  .grad_v = {},
                  .grad_sinks = {},
                  .grad_bias = {},
                  .grad_sinks_rounding = {}};
  Sums sums(inputs);
  for (std::int64_t batch = 0; batch < problem.batch; ++batch) {
    for (std::int64_t head = 0; head < problem.query_heads; ++head) {
      for (std::int64_t query = 0; query < problem.query_length; ++query) {
        const Place at{problem, batch, head, query};
        const Row one = row(problem, mask, inputs, batch, head, query, grad_o, grad_lse);
        std::copy(one.o.begin(), one.o.end(),
                  results.o.begin() + static_cast<std::ptrdiff_t>(at.of_query(problem.value_dim)));
        sums.add(at, inputs, grad_o, one);
      }
    }
  }
  const auto scale = static_cast<float>(problem.softmax_scale());
  results.grad_q = rounded(problem.dtype, scale, sums.q);
  results.grad_k = rounded(problem.dtype, scale, sums.k);
  results.grad_v = rounded(problem.dtype, 1, sums.v);
  results.grad_sinks = rounded(problem.dtype, 1, sums.sinks);
  results.grad_bias = rounded(problem.dtype, 1, sums.bias);
  for (const float variance : sums.sink_variances) results.grad_sinks_rounding.push_back(4 * std::sqrt(variance));
  return results;
}

}  // namespace flashmask::check::naive
