#include "cuda/sm80/forward/forward_row.cuh"

namespace flashmask::cuda::sm80 {
namespace {

template <class T>
using Shape = ForwardShape<T, 256, 256, 1, Queries::staged, 2>;
static_assert(sizeof(ForwardMemory<Shape<__half>>) <= kSmallSharedBytes);

}  // namespace

void add_forward_256(KernelRows& rows) {
  add_rows<Shape<__nv_bfloat16>>(rows, kLarge);
  add_rows<Shape<__half>>(rows, kLarge);
}

}  // namespace flashmask::cuda::sm80
