// SPDX-License-Identifier: Apache-2.0
#include "mask/builders/packing.h"

namespace flashmask::masks {

std::int64_t sum_of(const std::string& builder, const std::string& argument, Lengths lengths) {
  std::int64_t sum = 0;
  for (std::size_t k = 0; k < lengths.size(); ++k) {
    if (!is_size(lengths[k])) check_size(builder, argument + "[" + std::to_string(k) + "]", lengths[k]);
    sum += lengths[k];
  }
  return sum;
}

std::int64_t check_fit(const std::string& builder, const std::string& argument, Lengths lengths, std::int64_t tokens) {
  const std::int64_t sum = sum_of(builder, argument, lengths);
  if (sum > tokens) {
    refuse(builder + ": " + argument + " add up to " + grouped(sum) + " tokens but tokens is " + grouped(tokens) +
           "; give tokens >= " + std::to_string(sum) + " or shorten the " + argument);
  }
  return sum;
}

}  // namespace flashmask::masks
