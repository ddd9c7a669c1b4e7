// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/sampled_check.h"

#include <algorithm>

#include "flashmask/reference.h"
#include "kit/naive_attention.h"
#include "kit/random_numbers.h"
#include "kit/rounding.h"

namespace flashmask::cli {
namespace {

constexpr std::int64_t kPlaces = 2;             ///< (sequence, kv head) pairs that are sampled
constexpr std::int64_t kRows = 32;              ///< rows sampled at each place
constexpr std::int64_t kColumnCandidates = 64;  ///< columns tried at each place
constexpr std::int64_t kColumns = 12;           ///< columns sampled at each place, at most
constexpr std::int64_t kRowBudget = 1500;       ///< rows computed for all sampled columns of a place

/// A query row of one head.
struct QueryRow {
  std::int64_t query = 0, head = 0;  ///< `head` counts within its group
};

/// One row as a problem of its own, with its mask given score by score.
struct RowProblem {
  Problem problem;
  Mask mask;
  std::vector<double> dropout;  ///< factor of each probability; empty: no dropout
  reference::Inputs inputs;     ///< without `dropout`
  std::span<const double> grad_o;

  reference::Inputs all_inputs() const { return {inputs.q, inputs.k, inputs.v, dropout}; }
};

/// The problem whose results are checked, with its mask, dropout and tensors.
struct Whole {
  const Problem& problem;
  const VisibleScore& visible;
  const DropoutState& dropout;
  const check::AttentionTensors& tensors;
};

/// One key and value head of one sequence, with the query heads that share it, in double.
class HeadGroup {
 public:
  HeadGroup(const Whole& whole, std::int64_t batch, std::int64_t kv_head)
      : whole_(whole), batch_(batch), kv_head_(kv_head), problem_(whole.problem) {
    problem_.batch = 1;
    problem_.query_heads = whole.problem.query_heads / whole.problem.kv_heads;
    problem_.kv_heads = 1;
    problem_.scale = whole.problem.softmax_scale();
    q_ = gather(whole.tensors.q, first_head(), problem_.query_heads);
    k_ = gather(whole.tensors.k, kv_head, 1);
    v_ = gather(whole.tensors.v, kv_head, 1);
    grad_o_ = gather(whole.tensors.grad_o, first_head(), problem_.query_heads);
  }

  const Problem& problem() const { return problem_; }
  const double* q(QueryRow row) const { return &q_[element(row, problem_.head_dim)]; }
  const double* grad_o(QueryRow row) const { return &grad_o_[element(row, problem_.value_dim)]; }
  const double* k(std::int64_t column) const { return &k_[static_cast<std::size_t>(column * problem_.head_dim)]; }

  bool visible(QueryRow row, std::int64_t column) const {
    return whole_.visible(batch_, first_head() + row.head, row.query, column);
  }

  RowProblem problem_of(QueryRow row) const {
    Problem one = problem_;
    one.query_heads = one.query_length = 1;
    std::vector<std::uint8_t> scores;
    scores.reserve(static_cast<std::size_t>(one.key_length));
    for (std::int64_t j = 0; j < one.key_length; ++j) scores.push_back(visible(row, j) ? 1 : 0);
    return {one,
            from_dense({1, 1, 1, one.key_length}, scores, serial_executor()),
            dropout_factors(row),
            {{q(row), static_cast<std::size_t>(one.head_dim)}, k_, v_},
            {grad_o(row), static_cast<std::size_t>(one.value_dim)}};
  }

  /// Offset of a row of this group in the whole tensor.
  std::int64_t query_offset(const check::HostTensor& tensor, QueryRow row) const {
    return batch_ * tensor.stride(0) + row.query * tensor.stride(1) + (first_head() + row.head) * tensor.stride(2);
  }
  std::int64_t key_offset(const check::HostTensor& tensor, std::int64_t column) const {
    return batch_ * tensor.stride(0) + column * tensor.stride(1) + kv_head_ * tensor.stride(2);
  }
  double lse(QueryRow row) const {
    const check::HostTensor& lse = whole_.tensors.lse;
    return lse.at(batch_ * lse.stride(0) + (first_head() + row.head) * lse.stride(1) + row.query);
  }

 private:
  std::int64_t first_head() const { return kv_head_ * problem_.query_heads; }

  std::vector<double> dropout_factors(QueryRow row) const {
    std::vector<double> factors;
    if (problem_.dropout == 0) return factors;
    for (const std::uint8_t kept :
         expand_dropout(whole_.problem, whole_.dropout, batch_, first_head() + row.head, row.query)) {
      factors.push_back(kept == 0 ? 0 : dropout_scale(problem_.dropout));
    }
    return factors;
  }

  std::size_t element(QueryRow row, std::int64_t dim) const {
    return static_cast<std::size_t>((row.query * problem_.query_heads + row.head) * dim);
  }

  /// [tokens, heads, dim]: a copy of `heads` neighbouring heads.
  std::vector<double> gather(const check::HostTensor& tensor, std::int64_t first, std::int64_t heads) const {
    std::vector<double> values;
    values.reserve(static_cast<std::size_t>(tensor.shape(1) * heads * tensor.shape(3)));
    for (std::int64_t token = 0; token < tensor.shape(1); ++token) {
      const std::int64_t begin = batch_ * tensor.stride(0) + token * tensor.stride(1) + first * tensor.stride(2);
      for (std::int64_t i = 0; i < heads * tensor.shape(3); ++i) values.push_back(tensor.at(begin + i));
    }
    return values;
  }

  const Whole& whole_;
  std::int64_t batch_, kv_head_;
  Problem problem_;
  std::vector<double> q_, k_, v_, grad_o_;
};

void add_scaled(std::vector<double>& sum, double factor, const double* x) {
  for (std::size_t c = 0; c < sum.size(); ++c) sum[c] += factor * x[c];
}

/// Collects the comparisons of all sampled places.
class Sampler {
 public:
  Sampler(const check::AttentionTensors& results, DType dtype)
      : results_(results), dtype_(dtype), o_(dtype), grad_q_(dtype), grad_k_(dtype), grad_v_(dtype) {}

  void add_row(const HeadGroup& group, QueryRow row) {
    const Results results = compute(group, row);
    const Problem& p = group.problem();
    const std::int64_t offset = group.query_offset(results_.o, row);
    for (std::int64_t c = 0; c < p.value_dim; ++c) {
      const auto i = static_cast<std::size_t>(c);
      o_.add(results_.o.at(offset + c), results.exact.o[i], results.naive.o[i]);
    }
    lse_ = check::worse(check::compare_lse(dtype_, group.lse(row), results.exact.lse), lse_);
    add_grad_q(group, results, row);
    ++rows_;
  }

  void add_column(const HeadGroup& group, std::int64_t column, const std::vector<QueryRow>& seen_by) {
    const Problem& p = group.problem();
    Gradient key(p.head_dim), value(p.value_dim);
    for (const QueryRow row : seen_by) {
      const Results results = compute(group, row);
      const auto at = static_cast<std::size_t>(column);
      const std::size_t n = results.naive_index(column);
      key.add(results.grad_scores[at], results.naive.grad_scores[n], group.q(row));
      const float naive = check::round_to(dtype_, results.naive.p[n] * static_cast<float>(results.dropped(column)));
      value.add(results.exact.p[at] * results.dropped(column), naive, group.grad_o(row));
    }
    key.compare(results_.grad_k, group.key_offset(results_.grad_k, column), p.softmax_scale(), grad_k_);
    value.compare(results_.grad_v, group.key_offset(results_.grad_v, column), 1, grad_v_);
    ++columns_;
  }

  SampledErrors errors() const {
    return {rows_, columns_, o_.result(), lse_, grad_q_.result(), grad_k_.result(), grad_v_.result()};
  }

 private:
  /// The results for one query row, computed exactly and naively.
  struct Results {
    reference::Row exact;
    std::vector<double> grad_scores;
    check::naive::Row naive;
    std::vector<double> dropout;  ///< factor of each probability; empty: no dropout

    double dropped(std::int64_t column) const { return dropout.empty() ? 1 : dropout[index(column)]; }
    std::size_t naive_index(std::int64_t column) const {
      const auto found = std::lower_bound(naive.columns.begin(), naive.columns.end(), column);
      return static_cast<std::size_t>(found - naive.columns.begin());
    }
  };

  /// A gradient vector that sums contributions, exactly and naively.
  struct Gradient {
    explicit Gradient(std::int64_t dim) : exact(index(dim)), naive(index(dim)) {}

    void add(double exact_factor, double naive_factor, const double* x) {
      add_scaled(exact, exact_factor, x);
      add_scaled(naive, naive_factor, x);
    }
    void compare(const check::HostTensor& output, std::int64_t offset, double scale, check::ErrorBound& bound) const {
      const DType dtype = output.view().dtype;
      for (std::size_t c = 0; c < exact.size(); ++c) {
        const float rounded = check::round_to(dtype, static_cast<float>(scale) * static_cast<float>(naive[c]));
        bound.add(output.at(offset + static_cast<std::int64_t>(c)), scale * exact[c], rounded);
      }
    }

    std::vector<double> exact, naive;
  };

  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

  static Results compute(const HeadGroup& group, QueryRow row) {
    RowProblem one = group.problem_of(row);
    const Problem& p = one.problem;
    const reference::Inputs inputs = one.all_inputs();
    Results results{reference::row(p, one.mask, inputs, 0, 0, 0), {}, {}, {}};
    results.grad_scores = reference::grad_scores(p, inputs, results.exact, 0, 0, 0, one.grad_o, {});
    results.naive = check::naive::row(p, one.mask, inputs, 0, 0, 0, one.grad_o, {});
    results.dropout = std::move(one.dropout);
    return results;
  }

  void add_grad_q(const HeadGroup& group, const Results& results, QueryRow row) {
    const Problem& p = group.problem();
    Gradient gradient(p.head_dim);
    for (std::size_t n = 0; n < results.naive.columns.size(); ++n) {
      const std::int64_t column = results.naive.columns[n];
      gradient.add(results.grad_scores[index(column)], results.naive.grad_scores[n], group.k(column));
    }
    const std::int64_t offset = group.query_offset(results_.grad_q, row);
    gradient.compare(results_.grad_q, offset, p.softmax_scale(), grad_q_);
  }

  const check::AttentionTensors& results_;
  DType dtype_;
  check::ErrorBound o_, grad_q_, grad_k_, grad_v_;
  check::Comparison lse_;
  std::int64_t rows_ = 0, columns_ = 0;
};

std::vector<QueryRow> rows_that_see(const HeadGroup& group, std::int64_t column) {
  std::vector<QueryRow> rows;
  for (std::int64_t query = 0; query < group.problem().query_length; ++query) {
    for (std::int64_t head = 0; head < group.problem().query_heads; ++head) {
      if (group.visible({query, head}, column)) rows.push_back({query, head});
    }
  }
  return rows;
}

/// Samples the last row, which is padding more often than others, and random rows.
void sample_rows(const HeadGroup& group, check::RandomNumbers& random, Sampler& sampler) {
  const Problem& p = group.problem();
  sampler.add_row(group, {p.query_length - 1, 0});
  for (std::int64_t i = 1; i < kRows; ++i) {
    const std::int64_t query = random.below(p.query_length);
    sampler.add_row(group, {query, random.below(p.query_heads)});
  }
}

void sample_columns(const HeadGroup& group, check::RandomNumbers& random, Sampler& sampler) {
  std::int64_t budget = kRowBudget, found = 0;
  for (std::int64_t i = 0; i < kColumnCandidates && found < kColumns; ++i) {
    const std::int64_t column = random.below(group.problem().key_length);
    const std::vector<QueryRow> rows = rows_that_see(group, column);
    if (std::ssize(rows) > budget) continue;
    sampler.add_column(group, column, rows);
    budget -= std::ssize(rows);
    ++found;
  }
}

}  // namespace

double SampledErrors::largest_error() const {
  return std::max({o.error, lse.error, grad_q.error, grad_k.error, grad_v.error});
}

double SampledErrors::largest_ratio() const {
  return std::max({o.ratio(), lse.ratio(), grad_q.ratio(), grad_k.ratio(), grad_v.ratio()});
}

SampledErrors check_samples(const VisibleScore& visible, const Problem& problem, const DropoutState& dropout,
                            const check::AttentionTensors& results, std::uint64_t seed) {
  check::RandomNumbers random(seed);
  Sampler sampler(results, problem.dtype);
  const Whole whole{problem, visible, dropout, results};
  for (std::int64_t place = 0; place < kPlaces; ++place) {
    const std::int64_t sequence = random.below(problem.batch);
    const HeadGroup group(whole, sequence, random.below(problem.kv_heads));
    sample_rows(group, random, sampler);
    sample_columns(group, random, sampler);
  }
  return sampler.errors();
}

}  // namespace flashmask::cli
