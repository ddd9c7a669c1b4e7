// SPDX-License-Identifier: Apache-2.0
#include "jax/plan_cache.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace flashmask::jax {

PlanKey::Numbers PlanKey::numbers_of(const Call& call, void* stream) {
  const Problem& problem = call.problem;
  return {kAttention,
          problem.batch,
          problem.query_length,
          problem.key_length,
          problem.query_heads,
          problem.kv_heads,
          problem.head_dim,
          problem.value_dim,
          static_cast<std::int64_t>(problem.dtype),
          problem.device.index,
          std::bit_cast<std::int64_t>(problem.softmax_scale()),
          std::bit_cast<std::int64_t>(problem.dropout),
          static_cast<std::int64_t>(call.options.deterministic),
          static_cast<std::int64_t>(call.options.invariant),
          static_cast<std::int64_t>(call.mask.kind),
          call.mask.shape.batch,
          call.mask.shape.heads,
          call.mask.vectors,
          static_cast<std::int64_t>(call.mask.causal),
          stream == nullptr ? 0 : call.mask_name[0],
          stream == nullptr ? 0 : call.mask_name[1],
          static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(stream))};
}

std::shared_ptr<const void> PlanCache::find(const PlanKey& key) {
  const auto found = std::ranges::find_if(recent_, [&](const Entry& each) {
    return each.numbers == key.numbers && each.change == key.change && std::ranges::equal(each.mask, key.mask);
  });
  if (found == recent_.end()) return nullptr;
  recent_.splice(recent_.begin(), recent_, found);
  return found->made.plan;
}

std::shared_ptr<const void> PlanCache::find_or_make(const PlanKey& key, const std::function<CachedPlan()>& make) {
  {
    const std::scoped_lock lock(mutex_);
    if (auto found = find(key)) return found;
  }
  Entry entry{key.numbers, key.change, {key.mask.begin(), key.mask.end()}, make()};
  std::list<Entry> dropped;  // destroyed after the lock is released
  const std::scoped_lock lock(mutex_);
  if (auto found = find(key)) return found;
  bytes_ += entry.made.bytes;
  recent_.push_front(std::move(entry));
  dropped = drop_oldest();
  return recent_.front().made.plan;
}

std::list<PlanCache::Entry> PlanCache::drop_oldest() {
  std::list<Entry> dropped;
  while (recent_.size() > 1 && (recent_.size() > most_plans_ || bytes_ > most_bytes_)) {
    bytes_ -= recent_.back().made.bytes;
    dropped.splice(dropped.begin(), recent_, std::prev(recent_.end()));
  }
  return dropped;
}

std::size_t PlanCache::size() const {
  const std::scoped_lock lock(mutex_);
  return recent_.size();
}

PlanCache& plan_cache() {
  // Never destroyed: XLA's threads may still run while the process ends.
  static PlanCache& cache = *new PlanCache(32, std::size_t{256} << 20);
  return cache;
}

}  // namespace flashmask::jax
