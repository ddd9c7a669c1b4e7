// SPDX-License-Identifier: Apache-2.0
#include "jax/device_memory.h"

#include <memory>

namespace flashmask::jax {
namespace {

constexpr std::size_t kAlignment = 256;    // what plans ask for
constexpr std::size_t kXlaAlignment = 16;  // the most that XLA promises

}  // namespace

Device device_of(const Frame& frame) {
  XLA_FFI_DeviceOrdinal_Get_Args asked{XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE, nullptr, frame.context(), 0};
  check(frame.api(), frame.api().XLA_FFI_DeviceOrdinal_Get(&asked));
  return {DeviceType::cuda, asked.device_ordinal};
}

void* stream_of(const Frame& frame) {
  XLA_FFI_Stream_Get_Args asked{XLA_FFI_Stream_Get_Args_STRUCT_SIZE, nullptr, frame.context(), nullptr};
  check(frame.api(), frame.api().XLA_FFI_Stream_Get(&asked));
  return asked.stream;
}

Scratch::Scratch(const Frame& frame, std::size_t bytes)
    : api_(frame.api()), context_(frame.context()), bytes_(bytes + kAlignment - kXlaAlignment) {
  if (bytes == 0) return;
  XLA_FFI_DeviceMemory_Allocate_Args asked{
      XLA_FFI_DeviceMemory_Allocate_Args_STRUCT_SIZE, nullptr, context_, bytes_, kXlaAlignment, nullptr};
  check(api_, api_.XLA_FFI_DeviceMemory_Allocate(&asked));
  data_ = memory_ = asked.data;
  std::size_t left = bytes_;
  std::align(kAlignment, bytes, data_, left);
}

Scratch::~Scratch() {
  if (memory_ == nullptr) return;
  XLA_FFI_DeviceMemory_Free_Args freed{XLA_FFI_DeviceMemory_Free_Args_STRUCT_SIZE, nullptr, context_, bytes_, memory_};
  succeeded(api_, api_.XLA_FFI_DeviceMemory_Free(&freed));
}

}  // namespace flashmask::jax
