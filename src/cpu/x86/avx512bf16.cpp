#include <time.h>

#include "cpu/kernel_code.h"
#include "cpu/x86/avx512bf16_vector.h"
#include "cpu/x86/kernels.h"

namespace flashmask::cpu {

const KernelCode kAvx512Bf16Kernels[1] = {kernel_code<Avx512Bf16, Bf16>(DType::bf16)};

namespace {

/// Seconds for a fixed number of dot() on enough chains to fill the pipelines; the best of a few tries.
template <class Isa>
double dot_seconds() {
  constexpr int kChains = 12;
  double best = 1;
  for (int attempt = 0; attempt < 8; ++attempt) {
    typename Isa::Vec acc[kChains];
    // Opaque to the compiler, or it would see twelve equal chains and keep one.
    unrolled<kChains>([&](auto i) FLASHMASK_INLINE_LAMBDA {
      acc[i] = Isa::broadcast(0.0f);
      asm volatile("" : "+v"(acc[i]));
    });
    typename Isa::Vec a = Isa::broadcast(0.0f);
    timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int repeat = 0; repeat < 1500; ++repeat) {
      unrolled<kChains>([&](auto i) FLASHMASK_INLINE_LAMBDA { acc[i] = Isa::dot(acc[i], a, a); });
      asm volatile("" : "+v"(a));
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    unrolled<kChains>([&](auto i) FLASHMASK_INLINE_LAMBDA { asm volatile("" : : "v"(acc[i])); });
    const double seconds =
        static_cast<double>(end.tv_sec - begin.tv_sec) + 1e-9 * static_cast<double>(end.tv_nsec - begin.tv_nsec);
    best = seconds < best ? seconds : best;
  }
  return best;
}

}  // namespace

double bf16_dot_speedup() { return 2.0 * dot_seconds<Avx512>() / dot_seconds<Avx512Bf16>(); }

}  // namespace flashmask::cpu
