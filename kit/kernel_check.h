// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "flashmask/dropout.h"
#include "flashmask/mask.h"
#include "flashmask/tensor.h"
#include "kit/host_tensor.h"

namespace flashmask::check {

/// A mask that is not in the corpus, and its name.
struct GivenMask {
  std::string name;
  Mask mask;
};

struct CheckRequest {
  std::string kernel;               ///< a prefix of the kernels' names
  std::optional<DType> dtype = {};  ///< nullopt: all
  std::optional<Device> device;     ///< nullopt: the CPU, and the first GPU where there is one
  std::string mask;                 ///< a corpus entry; empty: all
  bool quick = false;               ///< one size per entry
  std::optional<GivenMask> given;   ///< instead of the corpus
  std::optional<double> dropout;    ///< in every case; nullopt: only in some
  DropoutState dropout_state{.seed = 0x0123456789abcdef, .offset = 77};
  std::optional<Sinks> sinks = {};  ///< in every case; nullopt: only in some
  bool reorder = false;             ///< every plan reorders tokens; then no case has dropout, a bias or per-row sinks
  bool invariant = false;           ///< every plan is invariant; then no case has a gradient of sinks or a bias
};

/// The result of one kernel over all cases that it serves.
struct KernelVerdict {
  std::string kernel;
  std::int64_t cases = 0;
  double worst = 0;   ///< largest error ÷ its bound
  std::string where;  ///< the case and the output that `worst` belongs to

  bool passes() const { return worst <= 1; }
};

/// Called before each case with its name, how many come before it and how many there are.
using CheckProgress = std::function<void(const std::string& name, std::int64_t done, std::int64_t cases)>;

/// Checks every kernel this machine can run × every mask of the corpus × awkward sizes against flashmask::reference; a
/// mask that fits intervals is given to kernels of both predicates. Then the kernels of linear attention (LinearCheck).
/// Throws Status::invalid_argument when no kernel or no mask has the requested name.
std::vector<KernelVerdict> check_kernels(const CheckRequest& request, const CheckProgress& progress = {});

}  // namespace flashmask::check
