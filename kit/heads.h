// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "flashmask/mask.h"
#include "flashmask/problem.h"
#include "kit/host_tensor.h"

namespace flashmask::check {

/// Everything about a problem except its lengths. Masks take these in turn, so that each meets several.
struct Heads {
  std::int64_t batch, query_heads, kv_heads, mask_heads, head_dim, value_dim;
  bool grad_lse = false;
  double dropout = 0;
  Sinks sinks = Sinks::none;
  const char* change = "";
};
/// The last eighteen have caps that most scores are far from, close to and beyond, ALiBi with and without one, biases,
/// longer chains, and functions.
inline constexpr std::array<Heads, 27> kHeads{
    {{1, 1, 1, 1, 64, 64, false, 0},
     {2, 3, 1, 3, 80, 48, true, 0.1, Sinks::of_heads},
     {1, 2, 2, 2, 128, 128, false, 0},
     {1, 4, 2, 2, 17, 33, true, 0, Sinks::of_rows},
     {2, 2, 1, 1, 100, 72, false, 0.5},
     {1, 1, 1, 1, 256, 256, true, 0},
     {1, 5, 1, 1, 1, 3, false, 0, Sinks::narrow_of_heads},
     {2, 6, 2, 6, 96, 72, true, 0, Sinks::of_heads},
     {2, 3, 3, 3, 40, 64, false, 0, Sinks::narrow_of_heads},
     {1, 2, 1, 1, 128, 128, false, 0, Sinks::none, "softcap(50)"},
     {2, 4, 2, 1, 64, 64, true, 0.2, Sinks::of_heads, "softcap(2)"},
     {1, 1, 1, 1, 200, 256, true, 0, Sinks::none, "softcap(0.25)"},
     {1, 4, 2, 1, 128, 128, true, 0, Sinks::none, "alibi"},
     {2, 2, 2, 1, 64, 64, false, 0.1, Sinks::of_rows, "alibi"},
     {2, 2, 1, 1, 72, 128, true, 0, Sinks::none, "softcap(3) | alibi"},
     {1, 4, 2, 2, 64, 48, true, 0.1, Sinks::of_heads, "softcap(2) | bias"},
     {2, 2, 1, 1, 40, 64, false, 0, Sinks::none, "bias"},
     {1, 2, 2, 1, 64, 64, false, 0, Sinks::none, "distance"},
     {2, 3, 1, 1, 48, 32, true, 0.1, Sinks::of_rows, "softcap(3) | distance"},
     {1, 4, 2, 1, 64, 64, true, 0, Sinks::none, "multiply(0.5) | softcap(2) | multiply(1.5)"},
     {2, 2, 1, 1, 72, 40, false, 0.1, Sinks::of_heads, "alibi | softcap(4) | multiply(-0.5)"},
     {1, 2, 2, 2, 64, 72, true, 0, Sinks::of_rows, "softcap(3) | multiply(2) | bias | softcap(2)"},
     {2, 3, 1, 1, 40, 64, true, 0, Sinks::none, "distance | multiply(0.75)"},
     {1, 4, 2, 1, 64, 64, true, 0, Sinks::none, "function(mul(score, add(1, mul(0.1, cos(sub(q, k))))))"},
     {2, 2, 1, 1, 72, 40, false, 0.1, Sinks::of_heads,
      "function($0 = div(1, add(1, exp(neg(score)))); add(mul(score, $0), at(0, h, floor(div(q, 3)), k)))"},
     {2, 3, 1, 1, 48, 64, true, 0, Sinks::of_rows,
      "function(where(lt(at(0, q), at(1, b, k)), add(score, bias), mul(score, 0.5)))"},
     {1, 2, 2, 1, 64, 72, true, 0.1, Sinks::none,
      "softcap(3) | function(add(max(score, distance), at(0, add(q, k))))"}}};

inline Problem problem_of(const Heads& heads, const MaskShape& mask) {
  return {.batch = heads.batch,
          .query_length = mask.rows,
          .key_length = mask.columns,
          .query_heads = heads.query_heads,
          .kv_heads = heads.kv_heads,
          .head_dim = heads.head_dim,
          .value_dim = heads.value_dim,
          .dropout = heads.dropout,
          .change = ScoreChange::parse(heads.change)};
}

}  // namespace flashmask::check
