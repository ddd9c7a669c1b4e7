// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/walk/walk_launch.cuh"

namespace flashmask::cuda::sm80 {

template std::size_t launch_linear<__half>(const LinearProblem&, const WalkTables&, const LinearForwardTensors&,
                                           std::byte*, void*);
template std::size_t launch_linear<__half>(const LinearProblem&, const WalkTables&, const LinearBackwardTensors&,
                                           std::byte*, void*);
template std::size_t linear_shared_bytes<__half>(const LinearProblem&);

}  // namespace flashmask::cuda::sm80
