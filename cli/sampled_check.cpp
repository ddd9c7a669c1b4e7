#include "sampled_check.h"

#include <algorithm>

#include "check/naive_attention.h"
#include "check/random_numbers.h"
#include "check/rounding.h"
#include "flashmask/reference.h"

namespace flashmask::cli {
namespace {

constexpr std::int64_t kPlaces = 2;             ///< (sequence, kv head) pairs that are looked at
constexpr std::int64_t kRows = 32;              ///< of each
constexpr std::int64_t kColumnCandidates = 64;  ///< of each
constexpr std::int64_t kColumns = 12;           ///< of each, at most
constexpr std::int64_t kRowBudget = 1500;       ///< rows that the columns of a place may need in all

/// One key and value head of one sequence, with the query heads that share it, as a problem of its own in double.
class HeadGroup {
 public:
  HeadGroup(const Problem& whole, const check::AttentionTensors& tensors, std::int64_t batch, std::int64_t kv_head)
      : tensors_(tensors), batch_(batch), kv_head_(kv_head), problem_(whole) {
    problem_.batch = 1;
    problem_.query_heads = whole.query_heads / whole.kv_heads;
    problem_.kv_heads = 1;
    problem_.scale = whole.softmax_scale();
    q_ = gather(tensors.q, first_head(), problem_.query_heads);
    k_ = gather(tensors.k, kv_head, 1);
    v_ = gather(tensors.v, kv_head, 1);
    grad_o_ = gather(tensors.grad_o, first_head(), problem_.query_heads);
  }

  const Problem& problem() const { return problem_; }
  reference::Inputs inputs() const { return {q_, k_, v_}; }
  const std::vector<double>& q() const { return q_; }
  const std::vector<double>& k() const { return k_; }
  const std::vector<double>& grad_o() const { return grad_o_; }

  /// First element, in the whole tensor, of a row of this group.
  std::int64_t query_offset(const check::HostTensor& tensor, std::int64_t query, std::int64_t head) const {
    return batch_ * tensor.stride(0) + query * tensor.stride(1) + (first_head() + head) * tensor.stride(2);
  }
  std::int64_t key_offset(const check::HostTensor& tensor, std::int64_t column) const {
    return batch_ * tensor.stride(0) + column * tensor.stride(1) + kv_head_ * tensor.stride(2);
  }
  double lse(std::int64_t query, std::int64_t head) const {
    const check::HostTensor& lse = tensors_.lse;
    return lse.at(batch_ * lse.stride(0) + (first_head() + head) * lse.stride(1) + query);
  }

 private:
  std::int64_t first_head() const { return kv_head_ * problem_.query_heads; }

  /// [tokens, heads, dim] of `heads` neighbouring heads.
  std::vector<double> gather(const check::HostTensor& tensor, std::int64_t first, std::int64_t heads) const {
    std::vector<double> values;
    values.reserve(static_cast<std::size_t>(tensor.shape(1) * heads * tensor.shape(3)));
    for (std::int64_t token = 0; token < tensor.shape(1); ++token) {
      const std::int64_t begin = batch_ * tensor.stride(0) + token * tensor.stride(1) + first * tensor.stride(2);
      for (std::int64_t i = 0; i < heads * tensor.shape(3); ++i) values.push_back(tensor.at(begin + i));
    }
    return values;
  }

  const check::AttentionTensors& tensors_;
  std::int64_t batch_, kv_head_;
  Problem problem_;
  std::vector<double> q_, k_, v_, grad_o_;
};

void add_scaled(std::vector<double>& sum, double factor, const double* x) {
  for (std::size_t c = 0; c < sum.size(); ++c) sum[c] += factor * x[c];
}

/// Collects the comparisons of all places.
class Sampler {
 public:
  Sampler(const check::AttentionTensors& results, DType dtype)
      : results_(results), dtype_(dtype), o_(dtype), grad_q_(dtype), grad_k_(dtype), grad_v_(dtype) {}

  void add_row(const HeadGroup& group, const Mask& mask, std::int64_t query, std::int64_t head) {
    const Rows rows = compute(group, mask, query, head);
    const Problem& p = group.problem();
    const std::int64_t offset = group.query_offset(results_.o, query, head);
    for (std::int64_t c = 0; c < p.value_dim; ++c) {
      const auto i = static_cast<std::size_t>(c);
      o_.add(results_.o.at(offset + c), rows.exact.o[i], rows.naive.o[i]);
    }
    lse_ = check::worse(check::compare_lse(dtype_, group.lse(query, head), rows.exact.lse), lse_);
    add_grad_q(group, rows, query, head);
    ++rows_;
  }

  void add_column(const HeadGroup& group, const Mask& mask, std::int64_t column,
                  const std::vector<std::int64_t>& seen_by) {
    const Problem& p = group.problem();
    Gradient key(p.head_dim), value(p.value_dim);
    for (const std::int64_t query : seen_by) {
      for (std::int64_t head = 0; head < p.query_heads; ++head) {
        const Rows rows = compute(group, mask, query, head);
        const auto at = static_cast<std::size_t>(column);
        const std::size_t n = rows.naive_index(column);
        const std::int64_t row = query * p.query_heads + head;
        key.add(rows.grad_scores[at], rows.naive.grad_scores[n], &group.q()[index(row * p.head_dim)]);
        value.add(rows.exact.p[at], rows.naive.p[n], &group.grad_o()[index(row * p.value_dim)]);
      }
    }
    key.compare(results_.grad_k, group.key_offset(results_.grad_k, column), p.softmax_scale(), grad_k_);
    value.compare(results_.grad_v, group.key_offset(results_.grad_v, column), 1, grad_v_);
    ++columns_;
  }

  SampledErrors errors() const {
    return {rows_, columns_, o_.result(), lse_, grad_q_.result(), grad_k_.result(), grad_v_.result()};
  }

 private:
  /// One query row, exactly and naively.
  struct Rows {
    reference::Row exact;
    std::vector<double> grad_scores;
    check::naive::Row naive;

    std::size_t naive_index(std::int64_t column) const {
      const auto found = std::lower_bound(naive.columns.begin(), naive.columns.end(), column);
      return static_cast<std::size_t>(found - naive.columns.begin());
    }
  };

  /// A gradient vector that gathers contributions, exactly and naively.
  struct Gradient {
    explicit Gradient(std::int64_t dim) : exact(index(dim)), naive(index(dim)) {}

    void add(double exact_factor, double naive_factor, const double* x) {
      add_scaled(exact, exact_factor, x);
      add_scaled(naive, naive_factor, x);
    }
    void compare(const check::HostTensor& output, std::int64_t offset, float scale, check::ErrorBound& bound) const {
      const DType dtype = output.view().dtype;
      for (std::size_t c = 0; c < exact.size(); ++c) {
        const float rounded = check::round_to(dtype, scale * static_cast<float>(naive[c]));
        bound.add(output.at(offset + static_cast<std::int64_t>(c)), scale * exact[c], rounded);
      }
    }

    std::vector<double> exact, naive;
  };

  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

  static Rows compute(const HeadGroup& group, const Mask& mask, std::int64_t query, std::int64_t head) {
    const Problem& p = group.problem();
    Rows rows{reference::row(p, mask, group.inputs(), 0, head, query), {}, {}};
    rows.grad_scores = reference::grad_scores(p, group.inputs(), rows.exact, 0, head, query, group.grad_o(), {});
    rows.naive = check::naive::row(p, mask, group.inputs(), 0, head, query, group.grad_o(), {});
    return rows;
  }

  void add_grad_q(const HeadGroup& group, const Rows& rows, std::int64_t query, std::int64_t head) {
    const Problem& p = group.problem();
    Gradient gradient(p.head_dim);
    for (std::size_t n = 0; n < rows.naive.columns.size(); ++n) {
      const std::int64_t column = rows.naive.columns[n];
      gradient.add(rows.grad_scores[index(column)], rows.naive.grad_scores[n], &group.k()[index(column * p.head_dim)]);
    }
    const std::int64_t offset = group.query_offset(results_.grad_q, query, head);
    gradient.compare(results_.grad_q, offset, p.softmax_scale(), grad_q_);
  }

  const check::AttentionTensors& results_;
  DType dtype_;
  check::ErrorBound o_, grad_q_, grad_k_, grad_v_;
  check::Comparison lse_;
  std::int64_t rows_ = 0, columns_ = 0;
};

std::vector<std::int64_t> rows_that_see(const Mask& mask, std::int64_t column) {
  std::vector<std::int64_t> rows;
  for (std::int64_t row = 0; row < mask.shape().rows; ++row) {
    if (mask.visible(0, 0, row, column)) rows.push_back(row);
  }
  return rows;
}

/// The last row and random ones: the last is padding more often than others.
void sample_rows(const HeadGroup& group, const Mask& mask, check::RandomNumbers& random, Sampler& sampler) {
  const Problem& p = group.problem();
  sampler.add_row(group, mask, p.query_length - 1, 0);
  for (std::int64_t i = 1; i < kRows; ++i) {
    sampler.add_row(group, mask, random.below(p.query_length), random.below(p.query_heads));
  }
}

void sample_columns(const HeadGroup& group, const Mask& mask, check::RandomNumbers& random, Sampler& sampler) {
  std::int64_t budget = kRowBudget, found = 0;
  for (std::int64_t i = 0; i < kColumnCandidates && found < kColumns; ++i) {
    const std::int64_t column = random.below(group.problem().key_length);
    const std::vector<std::int64_t> rows = rows_that_see(mask, column);
    const std::int64_t cost = std::ssize(rows) * group.problem().query_heads;
    if (cost > budget) continue;
    sampler.add_column(group, mask, column, rows);
    budget -= cost;
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

SampledErrors check_samples(const Workload& workload, const Problem& problem, const check::AttentionTensors& results,
                            std::uint64_t seed) {
  check::RandomNumbers random(seed);
  Sampler sampler(results, problem.dtype);
  for (std::int64_t place = 0; place < kPlaces; ++place) {
    const std::int64_t sequence = random.below(problem.batch);
    const HeadGroup group(problem, results, sequence, random.below(problem.kv_heads));
    const Mask mask = workload.mask(sequence);
    sample_rows(group, mask, random, sampler);
    sample_columns(group, mask, random, sampler);
  }
  return sampler.errors();
}

}  // namespace flashmask::cli
