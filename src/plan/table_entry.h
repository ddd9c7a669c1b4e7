// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

namespace flashmask {

/// An entry of the kernel table: a Kernel of attention or a LinearKernel.
class TableEntry {
 public:
  virtual ~TableEntry() = default;

  /// Returns why the machine cannot run it, or that FLASHMASK_ISA excludes it; empty if neither.
  virtual std::string refusal() const = 0;
  /// Returns why plans take it only when named, by its name or by FLASHMASK_ISA; empty if plans take it unasked.
  virtual std::string reservation() const { return ""; }
};

/// The entries of one kind of device, best first.
using KernelEntries = std::vector<std::unique_ptr<const TableEntry>>;
KernelEntries cpu_kernels();
KernelEntries cuda_kernels();

inline void append(KernelEntries& to, KernelEntries more) { std::ranges::move(more, std::back_inserter(to)); }

}  // namespace flashmask
