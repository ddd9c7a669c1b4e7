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

/// Results of the same mask with its tokens reordered.
struct ReorderedResult {
  double prepare_seconds = 0;  ///< including the search for the order
  std::int64_t active_tiles = 0;
  BothDirections seconds;
};

/// Where cases are timed, and by which kernels.
struct PapersPlace {
  Device device = {};
  std::string kernel = {};  ///< how kernel names must begin; empty: any

  bool on_gpu() const { return device.type != DeviceType::cpu; }
  // Tensor sizes: on a GPU those that Binary Block Masking was measured at, on a CPU a share of them.
  std::int64_t batch() const { return on_gpu() ? 4 : 1; }
  std::int64_t heads() const { return on_gpu() ? 32 : 4; }
  DType dtype() const { return on_gpu() ? DType::bf16 : DType::f32; }
};

struct PapersResult {
  PapersCase asked = {};
  PapersPlace place = {};
  MaskForm form = MaskForm::intervals;
  double density = 0;
  TileCounts tiles = {};           ///< tiles of the forward
  double mask_seconds = 0;         ///< building the mask from its numbers
  double plan_seconds = 0;         ///< schedules of both directions
  BothDirections unmasked = {};    ///< every score computed, causal where that was the paper's baseline
  BothDirections every_tile = {};  ///< the mask read in every tile; not timed for block maps
  BothDirections ours = {};
  std::optional<ReorderedResult> reordered = {};  ///< empty where reordering was not taken
  std::string reordering = {};                    ///< why it was taken, or not
  double copies_seconds = 0;                      ///< three copies of q, k, v, o; for block maps only

  double speedup() const { return unmasked.total() / ours.total(); }
};

/// Times cases: the fastest call on a CPU, sustained launches on a GPU. Tensors, the CPU's workspace (kept as a
/// training loop would) and unmasked runs are shared by the cases that need the same.
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
