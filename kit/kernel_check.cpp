// SPDX-License-Identifier: Apache-2.0
#include "kit/kernel_check.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>

#include "flashmask/dropout.h"
#include "flashmask/error.h"
#include "flashmask/kernels.h"
#include "flashmask/reference.h"
#include "kit/corpus.h"
#include "kit/error_bound.h"
#include "kit/heads.h"
#include "kit/host_tensor.h"
#include "kit/linear_check.h"
#include "kit/naive_attention.h"
#include "kit/placed_attention.h"
#include "kit/reference_numbers.h"

namespace flashmask::check {
namespace {

/// For a given mask, which fixes the batch and the key heads; query_heads is how many query heads share a key head.
constexpr std::array<Heads, 2> kGivenHeads{{{1, 2, 1, 1, 64, 64, false, 0}, {1, 1, 1, 1, 80, 48, true, 0}}};

/// One mask of the corpus, one size, one set of heads.
struct Case {
  Mask mask;
  Problem problem;
  bool grad_lse;
  Sinks sinks;
  std::string name;
};

Case make_case(const std::string& mask_name, Mask mask, const Heads& heads) {
  const Problem problem = problem_of(heads, mask.shape());
  const std::string name = mask_name + " " + std::to_string(problem.query_length) + " × " +
                           std::to_string(problem.key_length) + ", d " + std::to_string(heads.head_dim) + "/" +
                           std::to_string(heads.value_dim) + ", heads " + std::to_string(heads.query_heads) + "/" +
                           std::to_string(heads.kv_heads) + (heads.dropout == 0 ? "" : ", dropout") +
                           (*heads.change == 0 ? "" : ", ") + heads.change +
                           (heads.sinks == Sinks::none ? "" : ", sinks");
  return {std::move(mask), problem, heads.grad_lse, heads.sinks, name};
}

std::vector<Case> cases_of(const corpus::Entry& entry, std::size_t turn, bool quick) {
  std::vector<Case> cases;
  for (const corpus::Size& size : corpus::awkward_sizes()) {
    if (!entry.accepts(size)) continue;
    const Heads& heads = kHeads[turn++ % kHeads.size()];
    cases.push_back(make_case(entry.name, entry.build({size.rows, size.columns, heads.mask_heads}), heads));
  }
  if (quick) cases.erase(cases.begin(), cases.end() - 1);
  return cases;
}

std::vector<Case> cases_of(const GivenMask& given, bool quick) {
  std::vector<Case> cases;
  for (Heads heads : kGivenHeads) {
    heads.batch = given.mask.shape().batch;
    heads.kv_heads *= given.mask.shape().heads;
    heads.query_heads *= given.mask.shape().heads;
    cases.push_back(make_case(given.name, given.mask, heads));
  }
  if (quick) cases.pop_back();
  return cases;
}

std::vector<Case> corpus_cases(const CheckRequest& request) {
  std::vector<Case> cases;
  std::string names;
  std::size_t turn = 0;
  for (const corpus::Entry& entry : corpus::entries()) {
    names += (names.empty() ? "" : ", ") + entry.name;
    ++turn;
    if (!request.mask.empty() && entry.name != request.mask) continue;
    for (Case& one : cases_of(entry, turn, request.quick)) cases.push_back(std::move(one));
  }
  if (!cases.empty()) return cases;
  throw Error(Status::invalid_argument, "check: no mask \"" + request.mask + "\" in the corpus, which has " + names);
}

std::vector<Case> make_cases(const CheckRequest& request) {
  std::vector<Case> cases = request.given ? cases_of(*request.given, request.quick) : corpus_cases(request);
  for (Case& one : cases) {
    if (request.dropout) one.problem.dropout = *request.dropout;
    if (request.sinks) one.sinks = *request.sinks;
    if (!request.reorder) continue;
    one.problem.dropout = 0;
    if (one.problem.change.bias() != ScoreBias::none || one.problem.change.function() != nullptr)
      one.problem.change = {};
    if (one.sinks == Sinks::of_rows) one.sinks = Sinks::of_heads;
  }
  return cases;
}

std::vector<KernelInfo> kernels_to_check(const CheckRequest& request) {
  std::vector<KernelInfo> chosen;
  for (const KernelInfo& kernel : kernels()) {
    const bool named = kernel.name.compare(0, request.kernel.size(), request.kernel) == 0;
    const bool wanted = (!request.dtype || kernel.dtype == *request.dtype) &&
                        (!request.device || kernel.device == request.device->type);
    if (named && wanted && why_not(kernel).empty()) chosen.push_back(kernel);
  }
  return chosen;
}

[[noreturn]] void refuse_without_kernels(const CheckRequest& request, const LinearCheck& linear) {
  if (linear.lacking())
    throw Error(Status::unsupported, "check: \"" + request.kernel +
                                         "\" names kernels of linear attention, which has no dropout, sinks or "
                                         "reordering; leave these out");
  throw Error(Status::invalid_argument,
              "check: no kernel that runs here has a name that begins with \"" + request.kernel + "\"" +
                  (request.device ? " and is for " + to_string(*request.device) : "") + "; see flashmask info");
}

/// Inputs in one dtype, the right results, and those of a naive computation.
class Expected {
 public:
  Expected(const CheckRequest& request, const Case& one, const Problem& problem)
      : tensors_(problem, 1, one.sinks),
        dtype_(problem.dtype),
        with_grad_lse_(one.grad_lse),
        with_sums_(!request.invariant) {
    const DropoutState& state = request.dropout_state;
    execution_.dropout = state;
    const std::vector<double> grad_o = tensors_.grad_o.values();
    const std::vector<double> grad_lse = with_grad_lse_ ? tensors_.grad_lse.values() : std::vector<double>();
    const ReferenceNumbers numbers(tensors_, dropout_factors(problem, state));
    const reference::Inputs inputs = numbers.inputs();
    outputs_ = reference::forward(problem, one.mask, inputs);
    gradients_ = reference::backward(problem, one.mask, inputs, grad_o, grad_lse);
    naive_ = naive::attend(problem, one.mask, inputs, grad_o, grad_lse);
  }

  /// Runs a kernel's direction and calls note(output name, comparison) for each of its outputs.
  template <class Note>
  void compare(PlacedPlan& placed, Direction direction, const Note& note) {
    tensors_.clear_outputs();
    const PlacedTensors on_device(tensors_, placed.plan().problem().device);
    run(placed, on_device, direction);
    on_device.fetch();
    if (direction == Direction::forward) {
      note_forward(note);
      if (placed.plan().kernel(direction).features.has(Feature::max_scores)) compare_max_scores(placed, note);
      return;
    }
    note("dq", bound(tensors_.grad_q, gradients_.q, naive_.grad_q));
    note("dk", bound(tensors_.grad_k, gradients_.k, naive_.grad_k));
    note("dv", bound(tensors_.grad_v, gradients_.v, naive_.grad_v));
    if (tensors_.grad_sinks && with_sums_) note("dsinks", bound_of_sinks());
    if (tensors_.grad_bias && with_sums_) note("dbias", bound(*tensors_.grad_bias, gradients_.bias, naive_.grad_bias));
  }

 private:
  /// Runs the forward once more, for the largest scores too, of which kernels on a GPU may have code of its own.
  template <class Note>
  void compare_max_scores(PlacedPlan& placed, const Note& note) {
    tensors_.clear_outputs();
    const PlacedTensors on_device(tensors_, placed.plan().problem().device);
    ForwardTensors forward = on_device.forward();
    forward.max_scores = on_device.max_scores();
    try {
      placed.forward(forward, execution_);
    } catch (const Error& error) {  // a kernel that does not change scores beside them
      if (error.status() != Status::unsupported) throw;
      return;
    }
    on_device.fetch();
    note_forward(note);
    note("max_scores", of_rows(tensors_.max_scores, outputs_.max_scores));
  }

  template <class Note>
  void note_forward(const Note& note) const {
    note("o", bound(tensors_.o, outputs_.o, naive_.o));
    note("lse", of_rows(tensors_.lse, outputs_.lse));
  }

  void run(PlacedPlan& placed, const PlacedTensors& tensors, Direction direction) const {
    placed.forward(tensors.forward(), execution_);
    if (direction == Direction::forward) return;
    BackwardTensors backward = tensors.backward();
    if (!with_grad_lse_) backward.grad_lse = {};
    if (!with_sums_) backward.sinks = backward.grad_sinks = backward.grad_bias = {};
    placed.backward(backward, execution_);
  }

  Comparison bound(const HostTensor& output, const std::vector<double>& reference,
                   const std::vector<double>& naive) const {
    ErrorBound collected(dtype_);
    collected.add(output.values(), reference, naive);
    return collected.result();
  }

  Comparison bound_of_sinks() const {
    Comparison found = bound(*tensors_.grad_sinks, gradients_.sinks, naive_.grad_sinks);
    found.bound += std::ranges::max(naive_.grad_sinks_rounding);
    return found;
  }

  /// Compares lse, or the largest scores, which have its bound.
  Comparison of_rows(const HostTensor& given, const std::vector<double>& expected) const {
    Comparison worst;
    for (std::int64_t i = 0; i < given.size(); ++i)
      worst = worse(compare_lse(dtype_, given.at(i), expected[static_cast<std::size_t>(i)]), worst);
    return worst;
  }

  AttentionTensors tensors_;
  DType dtype_;
  bool with_grad_lse_;
  bool with_sums_;  ///< whether gradients that are sums over the call are compared: of sinks and biases
  Execution execution_;
  reference::Outputs outputs_;
  reference::Gradients gradients_;
  naive::Results naive_;
};

/// Makes a plan; nullptr where the kernel cannot run the problem, where it reads intervals and the mask, as given or as
/// reordered, does not fit them, or where no kernel of the other direction has dropout.
std::unique_ptr<PlacedPlan> plan_case(const CheckRequest& request, const KernelInfo& kernel, const Mask& mask,
                                      Problem problem) {
  problem.device = request.device.value_or(Device{kernel.device, 0});
  if (!why_not(kernel, problem, kernel.predicate).empty()) return nullptr;
  const PlanOptions options{
      .form = kernel.predicate, .kernel = kernel.name, .reorder = request.reorder, .invariant = request.invariant};
  try {
    return std::make_unique<PlacedPlan>(mask, problem, options);
  } catch (const Error& error) {
    const bool other = kernel.predicate == MaskForm::intervals || problem.dropout != 0;
    if (other && error.status() == Status::unsupported) return nullptr;
    throw;
  }
}

void check_kernel(const KernelInfo& kernel, const Case& one, PlacedPlan& placed, Expected& expected,
                  KernelVerdict& verdict) {
  ++verdict.cases;
  expected.compare(placed, kernel.direction, [&](const char* output, const Comparison& comparison) {
    if (comparison.ratio() <= verdict.worst && !verdict.where.empty()) return;
    verdict.worst = comparison.ratio();
    verdict.where = std::string(output) + " of " + one.name;
  });
}

/// Whether the plan's kernels support the sinks. A backward is checked after its forward, so both must.
bool takes(const PlacedPlan& placed, Direction checked, Sinks sinks) {
  const auto has = [&](Direction direction) { return placed.plan().kernel(direction).features.has(Feature::sinks); };
  return sinks == Sinks::none || (has(checked) && has(Direction::forward));
}

void check_case(const CheckRequest& request, const Case& one, const std::vector<KernelInfo>& kernels,
                std::vector<KernelVerdict>& verdicts) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Problem problem = one.problem;
    problem.dtype = dtype;
    const auto tested = [&](const KernelInfo& kernel) { return kernel.dtype == dtype; };
    if (std::none_of(kernels.begin(), kernels.end(), tested)) continue;
    Expected expected(request, one, problem);
    for (std::size_t i = 0; i < kernels.size(); ++i) {
      if (!tested(kernels[i])) continue;
      const std::unique_ptr<PlacedPlan> placed = plan_case(request, kernels[i], one.mask, problem);
      if (placed && takes(*placed, kernels[i].direction, one.sinks))
        check_kernel(kernels[i], one, *placed, expected, verdicts[i]);
    }
  }
}

}  // namespace

std::vector<KernelVerdict> check_kernels(const CheckRequest& request, const CheckProgress& progress) {
  const std::vector<KernelInfo> kernels = kernels_to_check(request);
  std::vector<Case> cases = make_cases(request);
  const LinearCheck linear(request);
  if (kernels.empty() && !linear.has_kernels()) refuse_without_kernels(request, linear);
  if (kernels.empty()) cases.clear();
  const std::int64_t all = std::ssize(cases) + linear.cases();
  std::vector<KernelVerdict> verdicts;
  verdicts.reserve(kernels.size());
  for (const KernelInfo& kernel : kernels)
    verdicts.push_back({.kernel = kernel.name, .cases = 0, .worst = 0, .where = {}});
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (progress) progress(cases[i].name, static_cast<std::int64_t>(i), all);
    check_case(request, cases[i], kernels, verdicts);
  }
  std::int64_t done = std::ssize(cases);
  std::vector<KernelVerdict> others = linear.run([&](const std::string& name) {
    if (progress) progress(name, done++, all);
  });
  std::ranges::move(others, std::back_inserter(verdicts));
  return verdicts;
}

}  // namespace flashmask::check
