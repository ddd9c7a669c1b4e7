// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/tile_shape.h"
#include "flashmask/attention.h"
#include "flashmask/kernels.h"
#include "plan/device_plan.h"
#include "plan/dropout.h"

namespace flashmask {

/// What a kernel runs on: the caller's executor and enough workspace for `workers` of its threads.
struct KernelExecution {
  Executor& executor;
  int workers;
  std::byte* workspace;
  DropoutState dropout;
  DropoutTables dropout_place = {};
  void* stream = nullptr;                            ///< of a GPU
  const std::uint64_t* dropout_on_device = nullptr;  ///< of a GPU, in place of `dropout` where it is given
};

/// When a kernel that has small tiles beside its own takes them: where it visits fewer of them than `limit` times its
/// own and `per_row` for each row tile of `rows`. The device compares the same numbers.
struct SmallTiles {
  TileShape own, small;
  float limit;
  float per_row;
  TileShape rows;
  std::size_t most_bytes;       ///< of a map of small tiles, beyond which there is none
  bool by_columns_too = false;  ///< there is a map by columns as well

  float allowance(const MaskShape& mask) const {
    return per_row * static_cast<float>(mask.batch * mask.heads * row_tiles(mask, rows));
  }
};

/// One row of the kernel table.
class Kernel {
 public:
  explicit Kernel(KernelInfo info) : info_(std::move(info)) {}
  virtual ~Kernel() = default;

  const KernelInfo& info() const { return info_; }

  /// Why the machine cannot run it, or FLASHMASK_ISA excludes it; empty when it can.
  virtual std::string refusal() const = 0;
  /// Why plans take it only where it is named, by its name or by FLASHMASK_ISA; empty where nothing speaks against it.
  virtual std::string reservation() const { return ""; }
  /// Why it cannot run on one device of its kind; empty where it can, or where the machine has no such device.
  virtual std::string refusal(Device) const { return ""; }
  /// Why it cannot serve a problem, beside what KernelInfo says of it; empty when it can.
  virtual std::string refusal(const Problem&) const { return ""; }
  /// Peak of the instructions its products are made of, in operations a second, measured when called.
  virtual double measure_peak() const = 0;
  virtual std::size_t workspace_bytes(const Problem& problem, int workers) const = 0;
  /// Nothing: its tiles have one size.
  virtual std::optional<SmallTiles> small_tiles() const { return {}; }
  /// The maps of tiles that a kernel of a GPU reads; others walk the schedule in tiles of info().
  virtual std::vector<MapRequest> maps() const { return {}; }

 private:
  KernelInfo info_;
};

class ForwardKernel : public Kernel {
 public:
  using Kernel::Kernel;
  virtual void run(const Plan& plan, const ForwardTensors& tensors, const KernelExecution& execution) const = 0;
};

class BackwardKernel : public Kernel {
 public:
  using Kernel::Kernel;
  virtual void run(const Plan& plan, const BackwardTensors& tensors, const KernelExecution& execution) const = 0;
};

/// The rows of one device, best first.
using KernelRows = std::vector<std::unique_ptr<const Kernel>>;
KernelRows cpu_kernels();
KernelRows cuda_kernels();

}  // namespace flashmask
