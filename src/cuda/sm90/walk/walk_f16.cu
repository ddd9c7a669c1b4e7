// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/walk/walk_launch.cuh"

namespace flashmask::cuda::sm90 {

template std::size_t launch_linear<__half>(const LinearProblem&, const WalkTables&, const LinearForwardTensors&,
                                           std::byte*, void*);
template std::size_t launch_linear<__half>(const LinearProblem&, const WalkTables&, const LinearBackwardTensors&,
                                           std::byte*, void*);

}  // namespace flashmask::cuda::sm90
