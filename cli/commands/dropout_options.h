// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/base/subcommand.h"
#include "flashmask/dropout.h"

namespace flashmask::cli {

/// Dropout on attention probabilities; its seed is the subcommand's --seed.
struct DropoutOptions {
  double probability = 0;
  std::uint64_t offset = 0;

  bool given() const { return probability != 0; }
  DropoutState state(std::uint64_t seed) const { return {.seed = seed, .offset = offset}; }
};

/// Adds --dropout and --dropout-offset.
void add_dropout_options(Subcommand& sub, DropoutOptions& options);

/// What is needed to repeat a run: "0.1, seed 1, offset 0".
std::string to_text(double probability, const DropoutState& state);
nlohmann::ordered_json to_json(double probability, const DropoutState& state);

}  // namespace flashmask::cli
