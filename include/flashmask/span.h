// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "flashmask/language_standard.h"

namespace flashmask {

/// Half-open range of tokens.
struct Span {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  friend bool operator==(const Span&, const Span&) = default;
};

}  // namespace flashmask
