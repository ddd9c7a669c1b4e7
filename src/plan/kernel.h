// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/tile_shape.h"
#include "flashmask/attention.h"
#include "flashmask/kernels.h"
#include "plan/compile_kernels.h"
#include "plan/device_plan.h"
#include "plan/dropout.h"
#include "plan/table_entry.h"

namespace flashmask {

/// The resources of a kernel's run: the caller's executor and enough workspace for `workers` of its threads.
struct KernelExecution {
  Executor& executor;
  int workers;
  std::byte* workspace;
  DropoutState dropout;
  DropoutTables dropout_place = {};
  void* stream = nullptr;                            ///< on a GPU only
  const std::uint64_t* dropout_on_device = nullptr;  ///< on a GPU only; if given, replaces `dropout`
};

/// When a kernel that has small tiles beside its own uses them: if it visits fewer of them than `limit` times its own
/// plus `per_row` for each row tile of shape `rows`. The device compares the same numbers.
struct SmallTiles {
  TileShape own, small;
  float limit;
  float per_row;
  TileShape rows;
  std::size_t most_bytes;       ///< size of a map of small tiles beyond which none is made
  bool by_columns_too = false;  ///< there is a map by columns as well

  float allowance(const MaskShape& mask) const {
    return per_row * static_cast<float>(mask.batch * mask.heads * row_tiles(mask, rows));
  }
};

/// A kind of GPU, whether there is one here or not.
struct GpuKind {
  std::string architecture;  ///< such as sm_90
  ComputeCapability capability;
  std::size_t block_shared_bytes;  ///< the most shared memory of a block
  std::size_t shared_bytes;        ///< shared memory of a multiprocessor
};

/// An entry of the kernel table for attention.
class Kernel : public TableEntry {
 public:
  explicit Kernel(KernelInfo info) : info_(std::move(info)) {}

  const KernelInfo& info() const { return info_; }

  std::string refusal() const override = 0;  // beside the others of its name, which it would hide
  /// Returns why it cannot run on one device of its kind; empty if it can, or if the machine has no such device.
  virtual std::string refusal(Device) const { return ""; }
  /// Returns why it cannot run on GPUs of a kind; empty if it can.
  virtual std::string refusal(const GpuKind&) const { return "it runs on a CPU"; }
  /// Returns why it cannot serve a problem, beyond what KernelInfo says; empty if it can.
  virtual std::string refusal(const Problem&) const { return ""; }
  /// Measures the peak rate of the instructions that its products consist of, in operations per second.
  virtual double measure_peak() const = 0;
  virtual std::size_t workspace_bytes(const Problem& problem, int workers) const = 0;
  /// Returns nullopt if its tiles have one size.
  virtual std::optional<SmallTiles> small_tiles() const { return {}; }
  /// Whether it finds the tokens of a tile by units (DevicePlan), so that none have to be gathered in places.
  virtual bool reads_units() const { return false; }
  /// Returns a sentence if it would serve a problem, and the machine lacks the compiler that compiled_code() takes.
  virtual std::string lacks(const Problem&) const { return ""; }
  /// Returns what is compiled for a problem's change of scores, on a GPU whose blocks have so much shared memory: plans
  /// have it compiled, so that no launch has to wait.
  virtual std::vector<KernelCode> compiled_code(const Problem&, std::size_t /*block_bytes*/) const { return {}; }
  /// Returns the maps of tiles that a GPU kernel reads; CPU kernels walk the schedule in tiles of info().
  virtual std::vector<MapRequest> maps() const { return {}; }

 private:
  KernelInfo info_;
};

class ForwardKernel : public Kernel {
 public:
  using Kernel::Kernel;
  virtual void run(const Plan& plan, const ForwardTensors& tensors, const KernelExecution& execution) const = 0;

  /// Whether it computes tangents of its results too, by run_tangents().
  virtual bool has_tangents() const { return false; }
  virtual std::size_t tangents_workspace_bytes(const Problem&, int) const { return 0; }
  virtual void run_tangents(const Plan&, const TangentTensors&, const KernelExecution&) const {}
};

class BackwardKernel : public Kernel {
 public:
  using Kernel::Kernel;
  virtual void run(const Plan& plan, const BackwardTensors& tensors, const KernelExecution& execution) const = 0;
};

}  // namespace flashmask
