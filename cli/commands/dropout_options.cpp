// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/dropout_options.h"

#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

namespace flashmask::cli {
namespace {

/// The shortest text that reads back as the same number.
std::string exact(double number) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}

}  // namespace

void add_dropout_options(Subcommand& sub, DropoutOptions& options) {
  const std::string group = "Dropout";
  sub.option("--dropout", options.probability, "Share of attention probabilities to drop, 0 to 0.99999").group(group);
  sub.option("--dropout-offset", options.offset, "What a training loop counts up, call by call [0]").group(group);
}

std::string to_text(double probability, const DropoutState& state) {
  return exact(probability) + ", seed " + std::to_string(state.seed) + ", offset " + std::to_string(state.offset);
}

nlohmann::ordered_json to_json(double probability, const DropoutState& state) {
  return {{"probability", probability}, {"seed", state.seed}, {"offset", state.offset}};
}

}  // namespace flashmask::cli
