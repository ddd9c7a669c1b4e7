#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cli/base/timing.h"
#include "cli/papers/papers_cases.h"
#include "flashmask/attention.h"
#include "kit/host_tensor.h"

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

struct PapersResult {
  PapersCase asked = {};
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

/// Times cases on the CPU with four heads in float32. Tensors, the workspace (as a training loop has it) and unmasked
/// runs are kept for the cases that share them.
class PapersBench {
 public:
  explicit PapersBench(std::uint64_t seed) : seed_(seed) {}

  PapersResult run(const PapersCase& one);

 private:
  using Length = std::pair<std::int64_t, std::int64_t>;  ///< tokens, head dim

  const check::AttentionTensors& tensors(const Problem& problem);
  Execution execution_of(const Plan& plan);
  BothDirections time(const Plan& plan, const Repeats& repeats);
  BothDirections unmasked(const PapersCase& one, const Problem& problem);
  void time_reordered(const Mask& mask, const Problem& problem, PapersResult& result);
  double time_copies(const Problem& problem);

  std::uint64_t seed_;
  std::vector<std::byte> workspace_;
  std::map<Length, std::unique_ptr<check::AttentionTensors>> tensors_;
  std::map<std::tuple<Length, bool>, BothDirections> unmasked_;
};

}  // namespace flashmask::cli
