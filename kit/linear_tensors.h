// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "flashmask/linear_attention.h"
#include "flashmask/mask.h"
#include "kit/host_tensor.h"
#include "kit/random_numbers.h"

namespace flashmask::check {

/// Draws the log of a gate.
using DrawGate = std::function<float(RandomNumbers&)>;

/// What the gates of a call are like; an empty function: the call has none.
struct Gates {
  std::string name;
  DrawGate forget, input;
};

/// Whether a mask is a tree of nodes, as linear attention takes it.
bool is_tree(const Mask& mask);

/// A memory of about 20 tokens, with input gates as mLSTM has them.
Gates mild_gates();
/// A memory of about 20 tokens, without input gates.
Gates decays();
/// A memory of about 1,000 tokens, with small input gates.
Gates long_memory();

/// Gates as one kind of layer, or one kind of mistake, makes them, and whether such a layer divides.
struct Regime {
  Gates gates;
  bool normalize;
};
std::vector<Regime> gate_regimes();

/// States of `count` nodes, or their gradients, which have no scale.
struct HostStates {
  HostStates(const LinearProblem& problem, std::int64_t count, bool scaled);

  LinearStates view() const;

  HostTensor state;
  std::optional<HostTensor> normalizer, log_scale;
};

/// The tensors of one problem, forward and backward, with random inputs; q and k are as long as a layer's norm leaves
/// them. With states, the call begins with some, and gradients of final ones come back.
struct LinearTensors {
  LinearTensors(const LinearPlan& plan, std::uint64_t seed, const Gates& gates = mild_gates(), bool states = false);

  LinearForwardTensors forward() const;
  LinearBackwardTensors backward() const;

  HostTensor q, k, v, o, grad_o, grad_q, grad_k, grad_v;
  std::optional<HostTensor> log_forget, log_input, grad_log_forget, grad_log_input;
  std::optional<HostStates> initial, final, grad_final, grad_initial;
};

/// The error of one output: the worst and the median, as shares of the largest number and of the median.
struct LinearError {
  std::string name;
  double worst = 0, median = 0;
};

/// Compares what a forward and a backward have left in the tensors with the reference.
std::vector<LinearError> linear_errors(const LinearPlan& plan, const Mask& mask, const LinearTensors& tensors);

}  // namespace flashmask::check
