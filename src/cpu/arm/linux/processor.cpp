// SPDX-License-Identifier: Apache-2.0
#include "cpu/arm/processor.h"

#include <asm/hwcap.h>
#include <sys/auxv.h>

namespace flashmask::cpu {

bool has_bf16_dot() { return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0; }

}  // namespace flashmask::cpu
