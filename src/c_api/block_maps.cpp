// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <optional>
#include <span>
#include <utility>

#include "c_api/convert.h"
#include "flashmask/block_map_builders.h"

namespace block_maps = flashmask::block_maps;
using flashmask::BlockMap;
using flashmask::MaskShape;
using flashmask::c_api::array;
using flashmask::c_api::element_count;
using flashmask::c_api::guard;
using flashmask::c_api::make_handle;
using flashmask::c_api::require;

struct flashmask_block_map {
  BlockMap map;
};

namespace {

flashmask_block_map* make_block_map(BlockMap map) { return new flashmask_block_map{std::move(map)}; }

/// Runs build(shape), which returns a BlockMap, and hands it out as a handle.
template <typename Build>
flashmask_status hand_out(flashmask_block_map** map, const flashmask_mask_shape* shape, Build&& build) noexcept {
  return guard([&] {
    require(map, "map");
    *map = make_block_map(build(flashmask::c_api::to_shape(shape)));
  });
}

/// An array with one value per block.
template <typename Value>
std::span<const Value> per_block(const Value* values, const MaskShape& shape, std::int64_t block, const char* name) {
  // BlockMap itself reports a wrong block size.
  const std::int64_t side = block < 1 ? 1 : block;
  const auto blocks = [side](std::int64_t size) { return size < 0 ? size : size / side + (size % side != 0 ? 1 : 0); };
  const std::array<std::int64_t, 4> sizes = {shape.batch, shape.heads, blocks(shape.rows), blocks(shape.columns)};
  return array(values, static_cast<std::int64_t>(element_count(sizes, name)), name);
}

}  // namespace

flashmask_status flashmask_block_map_create(const flashmask_mask_shape* shape, int64_t block, const uint8_t* keep,
                                            flashmask_block_map** map) {
  return hand_out(map, shape,
                  [&](const MaskShape& of) { return BlockMap(of, block, per_block(keep, of, block, "keep")); });
}

flashmask_status flashmask_block_map_butterfly(const flashmask_mask_shape* shape, int64_t block, int64_t strides,
                                               flashmask_block_map** map) {
  return hand_out(map, shape, [&](const MaskShape& of) {
    return block_maps::butterfly(of, block, strides == -1 ? std::nullopt : std::optional<std::int64_t>(strides));
  });
}

flashmask_status flashmask_block_map_strided(const flashmask_mask_shape* shape, int64_t block, int64_t stride,
                                             flashmask_block_map** map) {
  return hand_out(map, shape, [&](const MaskShape& of) { return block_maps::strided(of, block, stride); });
}

flashmask_status flashmask_block_map_sliding(const flashmask_mask_shape* shape, int64_t block, int64_t left,
                                             int64_t right, flashmask_block_map** map) {
  return hand_out(map, shape, [&](const MaskShape& of) { return block_maps::sliding(of, block, left, right); });
}

flashmask_status flashmask_block_map_random(const flashmask_mask_shape* shape, int64_t block, int64_t kept,
                                            uint64_t seed, flashmask_block_map** map) {
  return hand_out(map, shape, [&](const MaskShape& of) { return block_maps::random(of, block, kept, seed); });
}

flashmask_status flashmask_block_map_best(const flashmask_mask_shape* shape, int64_t block, const float* scores,
                                          int64_t kept, flashmask_block_map** map) {
  return hand_out(map, shape, [&](const MaskShape& of) {
    return block_maps::best(of, block, per_block(scores, of, block, "scores"), kept);
  });
}

flashmask_status flashmask_block_map_at_least(const flashmask_mask_shape* shape, int64_t block, const float* scores,
                                              float threshold, flashmask_block_map** map) {
  return hand_out(map, shape, [&](const MaskShape& of) {
    return block_maps::at_least(of, block, per_block(scores, of, block, "scores"), threshold);
  });
}

void flashmask_block_map_destroy(flashmask_block_map* map) { delete map; }

flashmask_status flashmask_mask_from_block_map(const flashmask_block_map* map, flashmask_mask** mask) {
  return guard([&] {
    require(mask, "mask");
    *mask = make_handle(flashmask::from_block_map(require(map, "map").map));
  });
}

flashmask_status flashmask_mask_and_block_map(const flashmask_mask* mask, const flashmask_block_map* map,
                                              flashmask_mask** result) {
  return guard([&] {
    require(result, "result");
    *result = make_handle(require(mask, "mask").mask & require(map, "map").map);
  });
}
