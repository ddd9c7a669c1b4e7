// SPDX-License-Identifier: Apache-2.0
#include "flashmask/tensor.h"

#include "flashmask/error.h"

namespace flashmask {

TensorView contiguous(void* data, DType dtype, std::initializer_list<std::int64_t> shape) {
  if (shape.size() < 1 || shape.size() > 4)
    throw Error(Status::invalid_argument,
                "contiguous: a tensor of rank " + std::to_string(shape.size()) + " was given; expected 1 to 4");
  TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.rank = static_cast<int>(shape.size());
  std::size_t axis = 0;
  for (const std::int64_t size : shape) view.shape[axis++] = size;
  std::int64_t stride = 1;
  while (axis-- > 0) {
    view.strides[axis] = stride;
    stride *= view.shape[axis];
  }
  return view;
}

std::size_t size_in_bytes(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

std::string to_string(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
  }
  return "unknown dtype";
}

std::string to_string(Device device) {
  return device.type == DeviceType::cpu ? "cpu" : "cuda:" + std::to_string(device.index);
}

}  // namespace flashmask
