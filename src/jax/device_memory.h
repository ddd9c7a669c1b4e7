// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "flashmask/tensor.h"
#include "jax/frame.h"
#include "plan/device_plan.h"

namespace flashmask::jax {

/// The GPU and the stream that XLA runs a call on.
Device device_of(const Frame& frame);
void* stream_of(const Frame& frame);

/// Memory of XLA's, on the GPU of a call and for its length, aligned to 256 bytes. Kernels that the call has queued on
/// its stream may still use it afterwards: XLA gives it to nothing that does not wait for them.
class Scratch {
 public:
  Scratch(const Frame& frame, std::size_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  /// nullptr where no bytes were asked for.
  void* data() const { return data_; }

 private:
  const XLA_FFI_Api& api_;
  XLA_FFI_ExecutionContext* context_;
  std::size_t bytes_;  // with what alignment takes
  void* memory_ = nullptr;
  void* data_ = nullptr;
};

}  // namespace flashmask::jax
