// SPDX-License-Identifier: Apache-2.0
#include "cpu/instruction_set.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "cpu/x86/processor.h"

namespace flashmask::cpu {
namespace {

/// EAX of CPUID's leaf 1, as processors have it.
struct Signature {
  const char* name;
  const char* vendor;
  unsigned eax, family, model;
  bool fast;
};

TEST(Processor, IsKnownByItsSignature) {
  const Signature all[] = {
      {"AMD EPYC 9654, Zen 4", "AuthenticAMD", 0x00A10F11, 0x19, 0x11, true},
      {"AMD Ryzen 7950X, Zen 4", "AuthenticAMD", 0x00A60F12, 0x19, 0x61, true},
      {"AMD EPYC 9755, Zen 5", "AuthenticAMD", 0x00B00F21, 0x1A, 0x02, true},
      {"AMD Ryzen 9950X, Zen 5", "AuthenticAMD", 0x00B40F40, 0x1A, 0x44, true},
      {"AMD EPYC 7742, Zen 2", "AuthenticAMD", 0x00830F10, 0x17, 0x31, false},
      {"Intel Cooper Lake", "GenuineIntel", 0x0005065B, 6, 0x55, false},
      {"Intel Sapphire Rapids", "GenuineIntel", 0x000806F8, 6, 0x8F, false},
      {"Intel Emerald Rapids", "GenuineIntel", 0x000C06F2, 6, 0xCF, false},
      {"Intel Granite Rapids", "GenuineIntel", 0x000A06D1, 6, 0xAD, false},
      {"nobody has seen it", "GenuineOther", 0x00B40F40, 0x1A, 0x44, false},
  };
  for (const Signature& each : all) {
    SCOPED_TRACE(each.name);
    const Processor processor = decode_processor(each.vendor, each.eax);
    EXPECT_EQ(processor.family, each.family);
    EXPECT_EQ(processor.model, each.model);
    EXPECT_EQ(has_fast_bf16_dot(processor), each.fast);
  }
}

TEST(InstructionSet, ThatIsSlowHereIsTakenWhereTheEnvironmentNamesIt) {
  InstructionSet slow = instruction_sets().back();
  slow.why_only_named = [] { return std::string("slower than others here"); };
  unsetenv("FLASHMASK_ISA");
  EXPECT_EQ(reservation_of(slow), "slower than others here");
  EXPECT_EQ(refusal_of(slow), "");
  setenv("FLASHMASK_ISA", slow.name, 1);
  EXPECT_EQ(reservation_of(slow), "");
  unsetenv("FLASHMASK_ISA");
}

}  // namespace
}  // namespace flashmask::cpu
