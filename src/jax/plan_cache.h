// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "flashmask/attention.h"
#include "jax/call.h"

namespace flashmask::jax {

/// What the first number of a key says its plan is for.
inline constexpr std::int64_t kAttention = 0, kLinearAttention = 1;

/// What a plan is made from: the numbers of a call, and the contents of its mask on a CPU, or on a GPU the mask's name
/// and the stream that the plan is made on.
struct PlanKey {
  using Numbers = std::array<std::int64_t, 22>;

  static PlanKey on_cpu(const Call& call) { return {numbers_of(call, nullptr), call.problem.change, call.mask.bytes}; }
  static PlanKey on_gpu(const Call& call, void* stream) { return {numbers_of(call, stream), call.problem.change, {}}; }

  Numbers numbers;
  ScoreChange change;
  std::span<const std::byte> mask;

 private:
  static Numbers numbers_of(const Call& call, void* stream);
};

struct CachedPlan {
  std::shared_ptr<const void> plan;  ///< a Plan or a LinearPlan, as the key says
  std::size_t bytes = 0;             ///< that it keeps
};

/// The most recently used plans: at most `most_plans`, which keep `most_bytes` in all. The newest always stays.
class PlanCache {
 public:
  PlanCache(std::size_t most_plans, std::size_t most_bytes) : most_plans_(most_plans), most_bytes_(most_bytes) {}

  /// Returns the plan of a key. `make` runs without the lock, so two threads may both run it for one key; the first
  /// plan that is there serves both.
  std::shared_ptr<const void> find_or_make(const PlanKey& key, const std::function<CachedPlan()>& make);

  std::size_t size() const;

 private:
  struct Entry {
    PlanKey::Numbers numbers;
    ScoreChange change;
    std::vector<std::byte> mask;
    CachedPlan made;
  };

  std::shared_ptr<const void> find(const PlanKey& key);
  std::list<Entry> drop_oldest();

  const std::size_t most_plans_, most_bytes_;
  mutable std::mutex mutex_;
  std::list<Entry> recent_;  // the newest first
  std::size_t bytes_ = 0;    // that recent_ keeps
};

/// The cache of the process.
PlanCache& plan_cache();

/// Finds a plan of attention there, or makes it.
inline std::shared_ptr<const Plan> attention_plan(const PlanKey& key, const std::function<CachedPlan()>& make) {
  return std::static_pointer_cast<const Plan>(plan_cache().find_or_make(key, make));
}

}  // namespace flashmask::jax
