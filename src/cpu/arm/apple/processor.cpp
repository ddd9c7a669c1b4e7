// SPDX-License-Identifier: Apache-2.0
#include "cpu/arm/processor.h"

#include <sys/sysctl.h>

#include <cstddef>

namespace flashmask::cpu {

bool has_bf16_dot() {
  int has = 0;
  std::size_t size = sizeof has;
  return sysctlbyname("hw.optional.arm.FEAT_BF16", &has, &size, nullptr, 0) == 0 && has != 0;
}

}  // namespace flashmask::cpu
