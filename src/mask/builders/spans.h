// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "flashmask/builders.h"

namespace flashmask::masks {

/// Returns the spans that are not empty, ascending. Throws unless they are disjoint and lie within [0, tokens).
std::vector<Span> sorted_spans(const std::string& builder, const std::string& argument, std::span<const Span> spans,
                               std::int64_t tokens);

}  // namespace flashmask::masks
