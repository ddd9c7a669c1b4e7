// SPDX-License-Identifier: Apache-2.0
#include "flashmask/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "base/checks.h"

namespace flashmask::reference {
namespace {

void require_size(const char* name, std::size_t given, std::int64_t expected) {
  if (given == static_cast<std::size_t>(expected)) return;
  refuse("reference: " + std::string(name) + " holds " + counted(given, "element") + "; the problem needs " +
         grouped(expected));
}

void require_bias(const Problem& p, const Inputs& in) {
  if (!has_bias_tensor(p)) return;
  const std::array<std::int64_t, 4>& shape = in.bias_shape;
  const std::int64_t whole[] = {p.batch, p.query_heads, p.query_length, p.key_length};
  std::int64_t size = 1;
  for (std::size_t axis = 0; axis < 4; ++axis) {
    const bool any = axis == 3 && p.change.bias() == ScoreBias::distances;
    if (!any && shape[axis] != whole[axis] && (axis == 3 || shape[axis] != 1))
      refuse("reference: axis " + std::to_string(axis) + " of bias_shape is " + std::to_string(shape[axis]) +
             "; the problem needs " + (axis == 3 ? "" : "1 or ") + grouped(whole[axis]));
    size *= shape[axis];
  }
  require_size("bias", in.bias.size(), size);
}

void require_operands(const Problem& p, const Inputs& in) {
  const ScoreFunction* const function = p.change.function();
  require_size("operands", in.operands.size(), function == nullptr ? 0 : function->operands());
  for (std::size_t i = 0; i < in.operands.size(); ++i) {
    const ScoreOperand& operand = in.operands[i];
    std::int64_t size = 1;
    for (int axis = 0; axis < function->rank(static_cast<int>(i)); ++axis)
      size *= operand.shape[static_cast<std::size_t>(axis)];
    if (size <= 0) refuse("reference: operand " + std::to_string(i) + " has no entries; the function reads one");
    require_size("an operand", operand.values.size(), size);
  }
}

void require_fit(const Problem& p, const Mask& mask, const Inputs& in) {
  validate(p);
  require_size("q", in.q.size(), p.batch * p.query_length * p.query_heads * p.head_dim);
  require_size("k", in.k.size(), p.batch * p.key_length * p.kv_heads * p.head_dim);
  require_size("v", in.v.size(), p.batch * p.key_length * p.kv_heads * p.value_dim);
  if (!in.dropout.empty())
    require_size("dropout", in.dropout.size(), p.batch * p.query_heads * p.query_length * p.key_length);
  const std::int64_t sinks = std::ssize(in.sinks);
  if (sinks != 0 && sinks != p.query_heads)
    require_size("sinks", in.sinks.size(), p.batch * p.query_heads * p.query_length);
  const auto require_either = [](const char* name, std::span<const double> given, std::int64_t one,
                                 std::int64_t other) {
    if (std::ssize(given) != one) require_size(name, given.size(), other);
  };
  if (p.change.bias() == ScoreBias::alibi) {
    require_either("alibi_slopes", in.alibi_slopes, p.query_heads, p.batch * p.query_heads);
    if (in.query_positions.empty() != in.key_positions.empty())
      refuse("reference: one of query_positions and key_positions is given; give both or none");
    if (!in.query_positions.empty()) {
      require_either("query_positions", in.query_positions, p.query_length, p.batch * p.query_length);
      require_either("key_positions", in.key_positions, p.key_length, p.batch * p.key_length);
    }
  }
  require_bias(p, in);
  require_operands(p, in);
  const MaskShape& m = mask.shape();
  const bool heads = m.heads == 1 || m.heads == p.kv_heads || m.heads == p.query_heads;
  if (heads && (m.batch == 1 || m.batch == p.batch) && m.rows == p.query_length && m.columns == p.key_length) return;
  refuse("reference: " + mask.description() +
         " does not fit the problem; give query_length rows, key_length columns, "
         "batch 1 or B, heads 1, kv_heads or query_heads");
}

/// Where the vectors of one query row and of its key columns lie.
struct Place {
  const Problem& p;
  std::int64_t b, h, i;

  std::int64_t kv_head() const { return h / (p.query_heads / p.kv_heads); }
  std::int64_t query(std::int64_t dim) const { return ((b * p.query_length + i) * p.query_heads + h) * dim; }
  std::int64_t key(std::int64_t j, std::int64_t dim) const {
    return ((b * p.key_length + j) * p.kv_heads + kv_head()) * dim;
  }
  std::int64_t lse() const { return (b * p.query_heads + h) * p.query_length + i; }
  double kept(const Inputs& in, std::int64_t j) const {
    return in.dropout.empty() ? 1 : in.dropout[lse() * p.key_length + j];
  }
  /// Index of the row's sink among the `count` sinks of a call.
  std::int64_t sink(std::size_t count) const { return static_cast<std::int64_t>(count) == p.query_heads ? h : lse(); }
  double sink(const Inputs& in) const { return in.sinks.empty() ? -HUGE_VAL : in.sinks[sink(in.sinks.size())]; }
};

double dot(const double* a, const double* b, std::int64_t n) { return std::transform_reduce(a, a + n, b, 0.0); }

void add_scaled(double* sum, double factor, const double* x, std::int64_t n) {
  for (std::int64_t c = 0; c < n; ++c) sum[c] += factor * x[c];
}

/// What ALiBi adds to the score of a column.
double alibi_of(const Place& at, const Inputs& in, std::int64_t j) {
  const Problem& p = at.p;
  // An array for all batch entries is one entry's, which every entry reads.
  const auto number = [&](std::span<const double> of, std::int64_t length, std::int64_t i) {
    return of[std::ssize(of) == length ? i : at.b * length + i];
  };
  const bool given = !in.query_positions.empty();
  const double row = given ? number(in.query_positions, p.query_length, at.i)
                           : static_cast<double>(at.i + p.key_length - p.query_length);
  const double column = given ? number(in.key_positions, p.key_length, j) : static_cast<double>(j);
  return -number(in.alibi_slopes, p.query_heads, at.h) * std::abs(row - column);
}

/// Index of what a bias tensor adds to the score of a column; −1 where there is no entry for the distance.
std::int64_t bias_index(const Place& at, const Inputs& in, std::int64_t j) {
  const std::array<std::int64_t, 4>& shape = in.bias_shape;
  const auto step = [&](std::size_t axis, std::int64_t i) { return shape[axis] == 1 ? 0 : i; };
  const bool by_distance = at.p.change.bias() == ScoreBias::distances;
  const std::int64_t entry = by_distance ? at.i + at.p.key_length - at.p.query_length - j + in.bias_origin : j;
  if (entry < 0 || entry >= shape[3]) return -1;
  return ((step(0, at.b) * shape[1] + step(1, at.h)) * shape[2] + step(2, at.i)) * shape[3] + entry;
}

double bias_of(const Place& at, const Inputs& in, std::int64_t j) {
  if (at.p.change.bias() == ScoreBias::alibi) return alibi_of(at, in, j);
  if (!has_bias_tensor(at.p)) return 0;
  const std::int64_t index = bias_index(at, in, j);
  return index < 0 ? 0 : in.bias[index];
}

/// Computes softmax(scale · q kᵀ) v over the columns that the row sees and its sink; other columns are never read.
Row attend(const Place& at, const Inputs& in, const std::vector<std::int64_t>& seen) {
  const Problem& p = at.p;
  Row row{std::vector<double>(p.key_length),
          std::vector<double>(p.value_dim),
          std::vector<double>(p.key_length, 1),
          std::vector<double>(p.key_length, 1),
          at.sink(in),
          -HUGE_VAL};
  if (seen.empty()) return row;

  const double* q = &in.q[at.query(p.head_dim)];
  const double sink = row.lse;
  for (std::int64_t j : seen) {
    const double score = p.softmax_scale() * dot(q, &in.k[at.key(j, p.head_dim)], p.head_dim);
    const ScorePlace place{bias_of(at, in, j), at.b, at.h, at.i, j, in.operands};
    const ScoreChange::Changed changed = p.change.apply(score, place);
    row.p[j] = changed.value;
    row.slopes[j] = changed.slope;
    row.bias_slopes[j] = changed.bias_slope;
    row.max_score = std::max(row.max_score, row.p[j]);
  }
  // A bias of −∞ hides what the mask shows.
  const double largest = std::max({sink, row.max_score, std::numeric_limits<double>::lowest()});
  double sum = std::exp(sink - largest);
  for (std::int64_t j : seen) sum += row.p[j] = std::exp(row.p[j] - largest);
  if (sum == 0) return row;
  row.lse = largest + std::log(sum);
  for (std::int64_t j : seen) {
    row.p[j] /= sum;
    add_scaled(row.o.data(), row.p[j] * at.kept(in, j), &in.v[at.key(j, p.value_dim)], p.value_dim);
  }
  return row;
}

std::vector<std::int64_t> seen_columns(const Place& at, const Mask& mask) {
  const std::int64_t b = mask.shape().batch == 1 ? 0 : at.b, h = at.h / (at.p.query_heads / mask.shape().heads);
  std::vector<std::int64_t> seen;
  for (std::int64_t j = 0; j < at.p.key_length; ++j)
    if (mask.visible(b, h, at.i, j)) seen.push_back(j);
  return seen;
}

template <class Body>
void for_each_row(const Problem& p, const Body& body) {
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.query_heads; ++h) {
      for (std::int64_t i = 0; i < p.query_length; ++i) body(Place{p, b, h, i});
    }
  }
}

/// Δ of one row, grad_o · o − grad_lse: it is subtracted from the gradient of each probability in the row.
double delta_of(const Place& at, const Row& row, std::span<const double> grad_o, std::span<const double> grad_lse) {
  return dot(&grad_o[at.query(at.p.value_dim)], row.o.data(), at.p.value_dim) -
         (grad_lse.empty() ? 0.0 : grad_lse[at.lse()]);
}

/// dL / d(changed score), over the columns.
std::vector<double> grad_changed_scores(const Place& at, const Inputs& in, const Row& row,
                                        std::span<const double> grad_o, std::span<const double> grad_lse) {
  const Problem& p = at.p;
  const double* go = &grad_o[at.query(p.value_dim)];
  const double delta = delta_of(at, row, grad_o, grad_lse);
  std::vector<double> ds(p.key_length);
  for (std::int64_t j = 0; j < p.key_length; ++j) {
    if (row.p[j] == 0) continue;
    ds[j] = row.p[j] * (at.kept(in, j) * dot(go, &in.v[at.key(j, p.value_dim)], p.value_dim) - delta);
  }
  return ds;
}

/// The tangents of a row's changed scores, over the columns.
std::vector<double> tangents_of_scores(const Place& at, const Inputs& in, const Row& row,
                                       const std::vector<std::int64_t>& seen, std::span<const double> tangent_q,
                                       std::span<const double> tangent_k) {
  const Problem& p = at.p;
  const std::int64_t q = at.query(p.head_dim);
  std::vector<double> tangents(p.key_length);
  for (std::int64_t j : seen) {
    if (row.p[j] == 0) continue;
    const std::int64_t k = at.key(j, p.head_dim);
    double product = 0;
    if (!tangent_q.empty()) product += dot(&tangent_q[q], &in.k[k], p.head_dim);
    if (!tangent_k.empty()) product += dot(&in.q[q], &tangent_k[k], p.head_dim);
    tangents[j] = p.softmax_scale() * row.slopes[j] * product;
  }
  return tangents;
}

}  // namespace

Row row(const Problem& p, const Mask& mask, const Inputs& in, std::int64_t b, std::int64_t h, std::int64_t i) {
  require_fit(p, mask, in);
  const Place at{p, b, h, i};
  return attend(at, in, seen_columns(at, mask));
}

Outputs forward(const Problem& p, const Mask& mask, const Inputs& in) {
  require_fit(p, mask, in);
  Outputs out{std::vector<double>(p.batch * p.query_length * p.query_heads * p.value_dim),
              std::vector<double>(p.batch * p.query_heads * p.query_length),
              std::vector<double>(p.batch * p.query_heads * p.query_length)};
  for_each_row(p, [&](const Place& at) {
    const Row row = attend(at, in, seen_columns(at, mask));
    std::copy(row.o.begin(), row.o.end(), out.o.begin() + at.query(p.value_dim));
    out.lse[at.lse()] = row.lse;
    out.max_scores[at.lse()] = row.max_score;
  });
  return out;
}

std::vector<double> grad_scores(const Problem& p, const Inputs& in, const Row& row, std::int64_t b, std::int64_t h,
                                std::int64_t i, std::span<const double> grad_o, std::span<const double> grad_lse) {
  std::vector<double> ds = grad_changed_scores({p, b, h, i}, in, row, grad_o, grad_lse);
  for (std::int64_t j = 0; j < p.key_length; ++j) ds[j] *= row.slopes[j];
  return ds;
}

Tangents forward_tangents(const Problem& p, const Mask& mask, const Inputs& in, std::span<const double> tangent_q,
                          std::span<const double> tangent_k, std::span<const double> tangent_v) {
  require_fit(p, mask, in);
  if (!tangent_q.empty()) require_size("tangent_q", tangent_q.size(), std::ssize(in.q));
  if (!tangent_k.empty()) require_size("tangent_k", tangent_k.size(), std::ssize(in.k));
  if (!tangent_v.empty()) require_size("tangent_v", tangent_v.size(), std::ssize(in.v));
  Tangents out{std::vector<double>(p.batch * p.query_length * p.query_heads * p.value_dim),
               std::vector<double>(p.batch * p.query_heads * p.query_length)};
  for_each_row(p, [&](const Place& at) {
    const std::vector<std::int64_t> seen = seen_columns(at, mask);
    const Row row = attend(at, in, seen);
    const std::vector<double> scores = tangents_of_scores(at, in, row, seen, tangent_q, tangent_k);
    const double of_lse = dot(row.p.data(), scores.data(), p.key_length);
    out.lse[at.lse()] = of_lse;
    double* const o = &out.o[at.query(p.value_dim)];
    for (std::int64_t j : seen) {
      const std::int64_t v = at.key(j, p.value_dim);
      const double weight = row.p[j] * at.kept(in, j);
      add_scaled(o, weight * scores[j], &in.v[v], p.value_dim);
      if (!tangent_v.empty()) add_scaled(o, weight, &tangent_v[v], p.value_dim);
    }
    add_scaled(o, -of_lse, row.o.data(), p.value_dim);
  });
  return out;
}

Gradients backward(const Problem& p, const Mask& mask, const Inputs& in, std::span<const double> grad_o,
                   std::span<const double> grad_lse) {
  require_fit(p, mask, in);
  require_size("grad_o", grad_o.size(), p.batch * p.query_length * p.query_heads * p.value_dim);
  if (!grad_lse.empty()) require_size("grad_lse", grad_lse.size(), p.batch * p.query_heads * p.query_length);
  Gradients grad{std::vector<double>(in.q.size()), std::vector<double>(in.k.size()), std::vector<double>(in.v.size()),
                 std::vector<double>(in.sinks.size()), std::vector<double>(in.bias.size())};
  const double scale = p.softmax_scale();
  for_each_row(p, [&](const Place& at) {
    const std::vector<std::int64_t> seen = seen_columns(at, mask);
    const Row row = attend(at, in, seen);
    const std::vector<double> changed = grad_changed_scores(at, in, row, grad_o, grad_lse);
    const std::int64_t q = at.query(p.head_dim), go = at.query(p.value_dim);
    for (std::int64_t j : seen) {
      if (row.p[j] == 0) continue;  // hidden by a score of −∞, whose slopes need not be finite
      const std::int64_t k = at.key(j, p.head_dim), v = at.key(j, p.value_dim);
      const double ds = scale * (changed[j] * row.slopes[j]);
      add_scaled(&grad.q[q], ds, &in.k[k], p.head_dim);
      add_scaled(&grad.k[k], ds, &in.q[q], p.head_dim);
      add_scaled(&grad.v[v], row.p[j] * at.kept(in, j), &grad_o[go], p.value_dim);
      const std::int64_t bias = has_bias_tensor(p) ? bias_index(at, in, j) : -1;
      if (bias >= 0) grad.bias[bias] += changed[j] * row.bias_slopes[j];
    }
    if (!in.sinks.empty() && row.lse != -HUGE_VAL)
      grad.sinks[at.sink(in.sinks.size())] -= std::exp(at.sink(in) - row.lse) * delta_of(at, row, grad_o, grad_lse);
  });
  return grad;
}

}  // namespace flashmask::reference
