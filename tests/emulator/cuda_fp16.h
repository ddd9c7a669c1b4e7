#pragma once

#include <cstdint>

/// Stands in for CUDA's type where kernels are compiled for a CPU, which only name it.
struct __half {
  std::uint16_t word;
};
