#include "plan/dropout.h"

#include <cmath>

#include "flashmask/error.h"

namespace flashmask {

std::uint32_t dropout_threshold(double dropout) { return static_cast<std::uint32_t>(std::lround(dropout * 65536)); }

double dropout_scale(double dropout) { return 1 / (1 - dropout_threshold(dropout) / 65536.0); }

void check_dropout(const std::string& call, const Problem& problem, const DropoutState& state) {
  if (problem.dropout == 0 || state.offset < std::uint64_t{1} << 32) return;
  throw Error(Status::invalid_argument,
              call + ": the dropout offset is " + std::to_string(state.offset) + "; expected one below 2^32");
}

}  // namespace flashmask
