// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/row_checks.h"

#include <string>

#include "cuda/runtime/status.h"
#include "flashmask/error.h"

namespace flashmask::cuda {
namespace {

constexpr std::int64_t kAlignment = 16;

[[noreturn]] void refuse(const char* name, const std::string& what) {
  throw Error(Status::invalid_argument, std::string(name) + ": " + what +
                                            "; expected a multiple of 16 bytes: make the tensor contiguous, with a "
                                            "head dim that is a multiple of 8");
}

}  // namespace

std::int64_t stride_bytes(const char* name, const TensorView& tensor, int axis) {
  const auto at = static_cast<std::size_t>(axis);
  const std::int64_t bytes = tensor.strides[at] * static_cast<std::int64_t>(size_in_bytes(tensor.dtype));
  if (tensor.shape[at] <= 1) return kAlignment;
  if (bytes < 0 || bytes % kAlignment != 0)
    refuse(name, "stride " + std::to_string(axis) + " is " + std::to_string(bytes) + " bytes");
  return bytes;
}

void check_rows(const char* name, const TensorView& tensor) {
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % kAlignment != 0) refuse(name, "its start is not aligned");
  for (int axis = 0; axis < 3; ++axis) stride_bytes(name, tensor, axis);
}

}  // namespace flashmask::cuda
