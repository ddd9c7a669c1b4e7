#include "flashmask/dropout.h"

#include <array>
#include <cstddef>

#include "dispatch/dropout.h"
#include "mask/check.h"

namespace flashmask {
namespace {

using Block = std::array<std::uint32_t, 4>;

/// Philox 4×32-10, as Salmon et al. (2011) write it down.
Block philox(Block counter, std::uint64_t seed) {
  auto key0 = static_cast<std::uint32_t>(seed);
  auto key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round, key0 += 0x9E3779B9, key1 += 0xBB67AE85) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key1, static_cast<std::uint32_t>(a)};
  }
  return counter;
}

}  // namespace

std::vector<std::uint8_t> expand_dropout(const Problem& problem, const DropoutState& state) {
  validate(problem);
  const std::int64_t heads = problem.batch * problem.query_heads;
  std::vector<std::uint8_t> kept(element_count("expand_dropout", {heads, problem.query_length, problem.key_length}));
  const std::uint32_t threshold = dropout_threshold(problem.dropout);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const auto score = static_cast<std::int64_t>(i);
    const std::int64_t column = score % problem.key_length;
    const std::int64_t row = score / problem.key_length % problem.query_length;
    const std::int64_t head = score / problem.key_length / problem.query_length;
    const Block numbers = philox({static_cast<std::uint32_t>(column / 8), static_cast<std::uint32_t>(row),
                                  static_cast<std::uint32_t>(head), static_cast<std::uint32_t>(state.offset)},
                                 state.seed);
    const std::uint32_t number = numbers[static_cast<std::size_t>(column % 8 / 2)] >> (column % 2 * 16) & 0xffff;
    kept[i] = number >= threshold;
  }
  return kept;
}

}  // namespace flashmask
