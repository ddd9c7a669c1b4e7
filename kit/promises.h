// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "flashmask/tensor.h"

namespace flashmask::check {

/// Something that the documentation promises to the bit, and whether it held here.
struct Promise {
  std::string what;
  std::string device;  ///< "cpu" or "cuda"
  DType dtype = DType::f32;
  bool holds = false;
};

/// Runs packed documents of 512 tokens, forward and backward, once for each promise and dtype that the device computes:
/// the same bits in a second run (on a GPU with deterministic plans), where every tile is visited, on a CPU with one
/// thread and with all, and there, under an invariant plan, of a document alone and in a pack.
std::vector<Promise> check_promises(Device device);

}  // namespace flashmask::check
