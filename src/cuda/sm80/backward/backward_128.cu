#include "cuda/sm80/backward/backward_row.cuh"

namespace flashmask::cuda::sm80 {

void add_backward_128(KernelRows& rows) {
  add_large_rows<128>(rows);
  add_small_rows<128>(rows);
}

}  // namespace flashmask::cuda::sm80
