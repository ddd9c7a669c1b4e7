// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

namespace flashmask::cuda::compile {

/// A header as NVRTC is given it: the name by which it is included, and its text. Both end in 0.
struct Source {
  const char* name;
  const char* text;
};

/// The headers that kernels are made of, put into the library when it is built (cmake/EmbedHeaders.cmake).
std::span<const Source> sources();

}  // namespace flashmask::cuda::compile
