// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/forward/forward_launch.cuh"
#include "cuda/sm80/forward/wide_forward_kernel.cuh"

namespace flashmask::cuda::sm80 {
namespace {

template <class T>
struct WideForwardCode {
  using Shape = WideForwardShape<T>;
  using Memory = WideForwardMemory<Shape>;
  static constexpr Features kFeatures = kInstanceFeatures;
  static auto kernel(const Problem&, bool max_scores) {
    return max_scores ? wide_forward_kernel<Maximizing<Shape>> : wide_forward_kernel<Shape>;
  }
  static_assert(sizeof(Memory) <= kLargeSharedBytes);
};

}  // namespace

void add_forward_512(KernelEntries& entries) {
  add_entries_of<WideForwardCode<__nv_bfloat16>>(entries, kLarge);
  add_entries_of<WideForwardCode<__half>>(entries, kLarge);
}

}  // namespace flashmask::cuda::sm80
