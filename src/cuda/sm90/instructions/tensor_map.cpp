// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/instructions/tensor_map.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>

#include "cuda/common/row_checks.h"
#include "cuda/runtime/status.h"
#include "flashmask/error.h"

namespace flashmask::cuda::sm90 {
namespace {

/// Looks up the driver's function at run time, so that the library also loads where there is no driver.
auto encode_function() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult answer{};
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &answer),
        "cudaGetDriverEntryPointByVersion");
  if (answer != cudaDriverEntryPointSuccess)
    throw Error(Status::unsupported,
                "the CUDA driver has no cuTensorMapEncodeTiled; install one of version 12 or newer");
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
}

}  // namespace

CUtensorMap make_tensor_map(const char* name, const TensorView& tensor, int rows) {
  static const auto encode = encode_function();
  // Nothing is ever copied from an empty tensor, whose data may be null.
  if (tensor.data == nullptr) return {};
  const auto size = [&](std::size_t axis) {
    return static_cast<cuuint64_t>(std::max<std::int64_t>(tensor.shape[axis], 1));
  };
  const cuuint64_t sizes[4] = {size(3), size(2), size(1), size(0)};
  const auto stride = [&](int axis) { return static_cast<cuuint64_t>(stride_bytes(name, tensor, axis)); };
  const cuuint64_t strides[3] = {stride(2), stride(1), stride(0)};
  const cuuint32_t box[4] = {64, 1, static_cast<cuuint32_t>(rows), 1}, steps[4] = {1, 1, 1, 1};
  const auto type = tensor.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  CUtensorMap map{};
  const CUresult answer =
      encode(&map, type, 4, tensor.data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (answer != CUDA_SUCCESS)
    throw Error(Status::internal,
                std::string(name) + ": cuTensorMapEncodeTiled answered " + std::to_string(static_cast<int>(answer)));
  return map;
}

}  // namespace flashmask::cuda::sm90
