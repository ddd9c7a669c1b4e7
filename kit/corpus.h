// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "flashmask/mask.h"

/// Every kind of mask at awkward sizes, for the tests, the benchmarks and `flashmask check`.
namespace flashmask::corpus {

struct Size {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t heads = 1;  ///< mask heads of entries that differ between heads; the others have one
};

enum class Fits : std::uint8_t {
  any_size,
  square,       ///< rows == columns only
  even_square,  ///< rows == columns, an even number
};

struct Entry {
  std::string name;
  Fits fits = Fits::any_size;
  std::function<Mask(const Size&)> build;

  bool accepts(const Size& size) const;
};

/// All entries; one line in corpus.cpp adds a mask. Entries are deterministic: what a builder needs (documents, spans,
/// a window) is derived from the size.
const std::vector<Entry>& entries();

/// Sizes around tile edges, single rows and columns, Sq ≠ Sk both ways. Mask heads are 1.
const std::vector<Size>& awkward_sizes();

/// One entry at one size that it accepts.
struct Case {
  const Entry* entry;
  Size size;

  Mask mask() const { return entry->build(size); }
  std::string name() const;  ///< such as "causal 63x65"
};

/// Every entry at every awkward size.
std::vector<Case> cases(std::int64_t heads);

}  // namespace flashmask::corpus
