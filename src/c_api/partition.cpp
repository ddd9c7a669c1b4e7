// SPDX-License-Identifier: Apache-2.0
#include "flashmask/partition.h"

#include <array>
#include <utility>
#include <vector>

#include "base/checks.h"
#include "c_api/sized_struct.h"

using flashmask::c_api::array;
using flashmask::c_api::guard;
using flashmask::c_api::require;

struct flashmask_partition {
  flashmask::Partition partition;
  std::vector<std::int64_t> runs = {};  ///< [runs, 3]: begin, end, rank

  explicit flashmask_partition(flashmask::Partition made) : partition(std::move(made)) {
    for (const auto& [tokens, rank] : partition.runs()) runs.insert(runs.end(), {tokens.begin, tokens.end, rank});
  }
};

struct flashmask_needs {
  std::vector<std::int64_t> values;  ///< [count, 4]: rank, owner, begin, end
};

namespace {

template <typename T>
void set_if_given(std::int64_t given, T& value) {
  if (given != 0) value = static_cast<T>(given);
}

std::int32_t to_int32(std::int64_t value, const char* name) {
  flashmask::check_size("partition", name, value);
  return static_cast<std::int32_t>(value);
}

flashmask::PartitionOptions to_options(const flashmask_partition_options* options) {
  const flashmask_partition_options given = flashmask::c_api::read_optional_struct(options, "options");
  flashmask::PartitionOptions to;
  to.division = flashmask::c_api::enumerator(given.division, flashmask::Division::zigzag, "options.division");
  to.aligned = given.aligned != 0;
  set_if_given(to_int32(given.tile, "options.tile"), to.tile);
  set_if_given(given.query_heads, to.query_heads);
  set_if_given(given.kv_heads, to.kv_heads);
  set_if_given(given.head_dim, to.head_dim);
  set_if_given(given.element_bytes, to.element_bytes);
  set_if_given(given.flops_per_ns, to.flops_per_ns);
  set_if_given(given.bytes_per_ns, to.bytes_per_ns);
  set_if_given(given.exchange_ns, to.exchange_ns);
  set_if_given(given.node_bytes_per_ns, to.node_bytes_per_ns);
  return to;
}

std::vector<flashmask::WeightedMask> to_masks(const flashmask_mask* const* masks, const std::int64_t* weights,
                                              std::int64_t count) {
  std::vector<flashmask::WeightedMask> to;
  for (const flashmask_mask* one : array(masks, count, "masks")) to.push_back({&require(one, "masks[]").mask, 1});
  if (weights != nullptr) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i].weight = weights[i];
  }
  return to;
}

}  // namespace

flashmask_status flashmask_partition_create(const flashmask_mask* const* masks, const int64_t* weights, int64_t count,
                                            const int64_t* sizes, int64_t levels,
                                            const flashmask_partition_options* options,
                                            flashmask_partition** partition) {
  return guard([&] {
    require(partition, "partition");
    std::vector<std::int32_t> ranks;
    for (const std::int64_t size : array(sizes, levels, "sizes")) ranks.push_back(to_int32(size, "sizes[]"));
    *partition =
        new flashmask_partition(flashmask::partition(to_masks(masks, weights, count), ranks, to_options(options)));
  });
}

flashmask_status flashmask_partition_from_runs(int64_t tokens, int64_t ranks, int64_t tile, const int64_t* runs,
                                               int64_t run_count, flashmask_partition** partition) {
  return guard([&] {
    require(partition, "partition");
    std::vector<flashmask::RankRun> given;
    const std::array<std::int64_t, 2> sizes = {run_count, 3};
    const auto values = array(runs, static_cast<std::int64_t>(flashmask::c_api::element_count(sizes, "runs")), "runs");
    for (std::size_t i = 0; i < values.size(); i += 3)
      given.push_back({{values[i], values[i + 1]}, to_int32(values[i + 2], "a rank")});
    *partition = new flashmask_partition(flashmask::Partition(tokens, to_int32(ranks, "ranks"), std::move(given),
                                                              tile == 0 ? 128 : to_int32(tile, "tile")));
  });
}

flashmask_status flashmask_partition_get(const flashmask_partition* partition, flashmask_partition_view* view) {
  return guard([&] {
    const auto& [made, runs] = require(partition, "partition");
    flashmask_partition_view result{};
    result.tokens = made.tokens();
    result.ranks = made.ranks();
    result.tile = made.tile();
    result.aligned = made.aligned() ? 1 : 0;
    result.run_count = std::ssize(made.runs());
    result.runs = runs.data();
    result.why = made.why().c_str();
    flashmask::c_api::write_struct(result, view, "view");
  });
}

flashmask_status flashmask_partition_loads(const flashmask_partition* partition, const flashmask_mask* mask,
                                           int64_t* loads) {
  return guard([&] {
    require(loads, "loads");
    for (const flashmask::RankLoad& load :
         flashmask::loads(require(partition, "partition").partition, require(mask, "mask").mask)) {
      for (const std::int64_t value :
           {load.tokens, load.tiles, load.row_tiles, load.column_tiles, load.received, load.sent})
        *loads++ = value;
    }
  });
}

flashmask_status flashmask_partition_predict(const flashmask_partition* partition, const flashmask_mask* mask,
                                             const flashmask_partition_options* options, int64_t* nanoseconds) {
  return guard([&] {
    require(nanoseconds, "nanoseconds");
    const flashmask::Mask& given = require(mask, "mask").mask;
    const auto& made = require(partition, "partition").partition;
    flashmask::PartitionOptions prices = to_options(options);
    prices.tile = made.tile();
    const auto time = flashmask::predict(flashmask::loads(made, given), given.shape(), prices);
    for (const std::int64_t value : {time.attention, time.wire, time.ideal}) *nanoseconds++ = value;
  });
}

void flashmask_partition_destroy(flashmask_partition* partition) { delete partition; }

flashmask_status flashmask_partition_needs(const flashmask_partition* partition, const flashmask_mask* mask,
                                           flashmask_needs** needs) {
  return guard([&] {
    require(needs, "needs");
    std::vector<std::int64_t> values;
    for (const auto& [rank, owner, columns] :
         flashmask::needs(require(partition, "partition").partition, require(mask, "mask").mask))
      values.insert(values.end(), {rank, owner, columns.begin, columns.end});
    *needs = new flashmask_needs{std::move(values)};
  });
}

flashmask_status flashmask_needs_get(const flashmask_needs* needs, const int64_t** values, int64_t* count) {
  return guard([&] {
    const std::vector<std::int64_t>& all = require(needs, "needs").values;
    require(values, "values") = all.data();
    require(count, "count") = std::ssize(all) / 4;
  });
}

void flashmask_needs_destroy(flashmask_needs* needs) { delete needs; }
