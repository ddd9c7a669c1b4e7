// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cli/base/timing.h"
#include "cli/papers/papers_cases.h"
#include "kit/host_tensor.h"
#include "kit/placed_attention.h"

namespace flashmask::cli {

struct BothDirections {
  double forward = 0, backward = 0;  ///< seconds

  double total() const { return forward + backward; }
};

/// The same mask with tokens in another order.
struct ReorderedResult {
  double prepare_seconds = 0;  ///< with the search for the order
  std::int64_t active_tiles = 0;
  BothDirections seconds;
};

/// Where cases are timed, and by which kernels.
struct PapersPlace {
  Device device = {};
  std::string kernel = {};  ///< what names begin with; any

  bool on_gpu() const { return device.type != DeviceType::cpu; }
  // Of the tensors. A GPU has the sizes that Binary Block Masking was measured at, one core a share of them.
  std::int64_t batch() const { return on_gpu() ? 4 : 1; }
  std::int64_t heads() const { return on_gpu() ? 32 : 4; }
  DType dtype() const { return on_gpu() ? DType::bf16 : DType::f32; }
};

struct PapersResult {
  PapersCase asked = {};
  PapersPlace place = {};
  MaskForm form = MaskForm::intervals;
  double density = 0;
  TileCounts tiles = {};           ///< of the forward
  double mask_seconds = 0;         ///< from numbers to a mask
  double plan_seconds = 0;         ///< schedules of both directions
  BothDirections unmasked = {};    ///< every score computed, causal where that was the paper's baseline
  BothDirections every_tile = {};  ///< the mask read in every tile; not timed for block maps
  BothDirections ours = {};
  std::optional<ReorderedResult> reordered = {};  ///< nothing where reordering declined
  std::string reordering = {};                    ///< why
  double copies_seconds = 0;                      ///< three copies of q, k, v, o; of block maps only

  double speedup() const { return unmasked.total() / ours.total(); }
};

/// Times cases: the fastest of calls on a CPU, sustained launches on a GPU. Tensors, the CPU's workspace (as a training
/// loop has it) and unmasked runs are kept for the cases that share them.
class PapersBench {
 public:
  PapersBench(std::uint64_t seed, PapersPlace place) : seed_(seed), place_(std::move(place)) {}

  PapersResult run(const PapersCase& one);

 private:
  using Length = std::pair<std::int64_t, std::int64_t>;  ///< tokens, head dim

  struct Tensors {
    Tensors(const Problem& problem, std::uint64_t seed) : host(problem, seed), placed(host, problem.device) {}

    check::AttentionTensors host;
    check::PlacedTensors placed;
  };

  Problem problem_of(const PapersCase& one) const;
  PlanOptions options(PlanOptions asked = {}) const;
  const check::PlacedTensors& tensors(const Problem& problem);
  Execution execution_of(const Plan& plan);
  double time(const std::function<void()>& work, const Repeats& repeats) const;
  double time_preparation(const std::function<void()>& work) const;
  BothDirections time(check::PlacedPlan& plan, const Repeats& repeats);
  BothDirections time(const Mask& mask, const Problem& problem, const PlanOptions& asked, const Repeats& repeats);
  BothDirections unmasked(const PapersCase& one, const Problem& problem);
  void time_reordered(const Mask& mask, const Problem& problem, PapersResult& result);
  double time_copies(const Problem& problem) const;

  std::uint64_t seed_;
  PapersPlace place_;
  std::vector<std::byte> workspace_;
  std::map<Length, std::unique_ptr<Tensors>> tensors_;
  std::map<std::tuple<Length, bool>, BothDirections> unmasked_;
};

}  // namespace flashmask::cli
