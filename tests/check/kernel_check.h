#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "flashmask/tensor.h"

namespace flashmask::check {

struct CheckRequest {
  std::string kernel;               ///< a prefix of the names
  std::optional<DType> dtype = {};  ///< nothing: all
  std::string mask;                 ///< a corpus entry; empty: all
  bool quick = false;               ///< one size an entry
};

/// What became of one kernel over all cases that it serves.
struct KernelVerdict {
  std::string kernel;
  std::int64_t cases = 0;
  double worst = 0;   ///< largest error ÷ its bound
  std::string where;  ///< the case and the output it belongs to

  bool passes() const { return worst <= 1; }
};

/// Called before each case with its name, how many come before it and how many there are.
using CheckProgress = std::function<void(const std::string& name, std::int64_t done, std::int64_t cases)>;

/// Every kernel this machine can run × every mask of the corpus × awkward sizes, against flashmask::reference. Throws
/// Status::invalid_argument when no kernel or no mask has the requested name.
std::vector<KernelVerdict> check_kernels(const CheckRequest& request, const CheckProgress& progress = {});

}  // namespace flashmask::check
