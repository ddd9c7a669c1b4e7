#include "dispatch/dropout.h"

#include <cmath>

#include "flashmask/dropout.h"

namespace flashmask {

std::uint32_t dropout_threshold(double dropout) { return static_cast<std::uint32_t>(std::lround(dropout * 65536)); }

double dropout_scale(double dropout) { return 1 / (1 - dropout_threshold(dropout) / 65536.0); }

}  // namespace flashmask
