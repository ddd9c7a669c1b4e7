// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/tangents/tangents_launch.cuh"

namespace flashmask::cuda::sm80 {

template void launch_tangents<__nv_bfloat16, 64>(const Plan&, const TangentTensors&, const KernelExecution&,
                                                 const DeviceMap&);
template void launch_tangents<__half, 64>(const Plan&, const TangentTensors&, const KernelExecution&, const DeviceMap&);

}  // namespace flashmask::cuda::sm80
