// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/views/plan.h"
#include "cuda/views/scores.h"

namespace flashmask::cuda {

/// Arguments of kernels that walk row tiles, besides their own tensors.
struct RowArguments {
  int batch, query_length, key_length, query_heads;
  int head_ratio;  // query heads per key head
  int items;       // row tiles of all heads
  ScoreArguments score;
  int section_heads;  // heads whose keys and values stay in the L2 cache together
  TileMapView map;
  MaskView mask;
  int* next_item;     // 0 at the start of a launch
  TileChoice choice;  // empty where there is one launch
  DeviceUnits query_units, key_units;
};

}  // namespace flashmask::cuda
