// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <initializer_list>
#include <span>
#include <utility>

#include "flashmask/language_standard.h"

namespace flashmask {

/// An argument for the elements that a call reads: a vector, an array, a span, or a list in braces, such as
/// causal_document({600, 300}, 1024). It only points to them, as a span does: never store it.
template <class T>
class Elements : public std::span<const T> {
 public:
  template <class Range>
  requires std::convertible_to<Range&&, std::span<const T>> Elements(Range&& range)
      : std::span<const T>(std::forward<Range>(range)) {}
  Elements(std::initializer_list<T> elements) : std::span<const T>(elements.begin(), elements.size()) {}
};

}  // namespace flashmask
