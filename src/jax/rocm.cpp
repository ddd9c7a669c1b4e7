// SPDX-License-Identifier: Apache-2.0
// What XLA calls when it compiles for an AMD GPU.
#include "flashmask/error.h"
#include "jax/frame.h"

namespace jax = flashmask::jax;

extern "C" FLASHMASK_API XLA_FFI_Error* flashmask_jax_refuse_rocm(XLA_FFI_CallFrame* frame) {
  return jax::handle(frame, [](const jax::Frame&) {
    throw flashmask::Error(
        flashmask::Status::unsupported,
        "flashmask.jax: the program is compiled for AMD's GPUs, and flashmask has kernels for CPUs and "
        "NVIDIA's GPUs: run it under jax.default_device(jax.devices('cpu')[0])");
  });
}
