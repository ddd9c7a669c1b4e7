// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

namespace flashmask::cpu {

/// The make of a processor, as CPUID reports it.
struct Processor {
  std::string vendor;
  unsigned family = 0, model = 0;
};

/// Decodes leaf 0's vendor and leaf 1's EAX, which holds family and model in two parts each.
inline Processor decode_processor(std::string vendor, unsigned eax) {
  const unsigned family = eax >> 8 & 0xf, model = eax >> 4 & 0xf;
  return {std::move(vendor), family == 0xf ? family + (eax >> 20 & 0xff) : family, model | (eax >> 16 & 0xf) << 4};
}

/// Whether VDPBF16PS runs at the rate of the float32 multiply-add and so does twice the work. This is known of AMD's
/// Zen 4 (family 0x19, whose Zen 3 models lack the instruction) and Zen 5 (0x1a). Intel's run it at half that rate,
/// measured on one with AMX. Unknown processors are treated like Intel's: float32 products lose at most half the speed
/// there and are more precise, and users can name the set.
inline bool has_fast_bf16_dot(const Processor& processor) {
  return processor.vendor == "AuthenticAMD" && (processor.family == 0x19 || processor.family == 0x1a);
}

}  // namespace flashmask::cpu
