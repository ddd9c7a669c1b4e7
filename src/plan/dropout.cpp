// SPDX-License-Identifier: Apache-2.0
#include "plan/dropout.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/checks.h"
#include "flashmask/error.h"

namespace flashmask {
namespace {

constexpr std::int64_t kHeadNumbers = 2;

std::int64_t eights(std::int64_t tokens) { return (tokens + 7) / 8; }
std::int64_t packed_eights(std::int64_t tokens) { return eights(tokens) + kDropoutPlaceTail; }
std::int64_t packed_size(const Problem& problem) {
  return kHeadNumbers + packed_eights(problem.query_length) + packed_eights(problem.key_length);
}

[[noreturn]] void refuse_place(const std::string& what) {
  throw Error(Status::invalid_argument, "pack: the dropout place has " + what);
}

/// Returns the length of the aligned groups of tokens that must be consecutive in the larger problem: a multiple of the
/// rows and columns of every kernel's tiles for the problem.
std::int64_t unbroken_tokens(const Problem& problem) {
  if (problem.device.type == DeviceType::cpu) return 8;
  const std::int64_t dim = std::max(problem.head_dim, problem.value_dim);
  return dim <= 64 || (dim > 128 && dim <= 192) ? 384 : 128;
}

void check_unbroken(const char* name, const std::vector<std::int32_t>& given, std::int64_t tokens) {
  const auto most = static_cast<std::size_t>(tokens / 8);
  for (std::size_t i = 1; i < given.size(); ++i)
    if (i % most != 0 && given[i] != given[i - 1] + 1)
      refuse_place(std::to_string(given[i]) + " behind " + std::to_string(given[i - 1]) + " in " + name +
                   ", at number " + std::to_string(i) + "; on a GPU those of " + std::to_string(tokens) +
                   " tokens, a multiple of a kernel's tile, have to follow one another");
}

/// Writes the numbers of one axis where `to` points, and returns where the next ones go.
std::int32_t* pack_axis(const char* name, const std::vector<std::int32_t>& given, std::int64_t tokens,
                        std::int64_t unbroken, std::int32_t* to) {
  std::int32_t* const end = to + eights(tokens);
  if (given.empty()) {
    std::iota(to, end, 0);
  } else if (std::ssize(given) != end - to) {
    refuse_place(std::to_string(given.size()) + " numbers in " + name + "; expected " + std::to_string(end - to) +
                 ", one for every eight of " + std::to_string(tokens));
  } else if (std::ranges::min(given) < 0) {
    refuse_place(std::to_string(std::ranges::min(given)) + " in " + name + "; expected numbers from 0 on");
  } else {
    check_unbroken(name, given, unbroken);
    std::ranges::copy(given, to);
  }
  std::fill_n(end, kDropoutPlaceTail, 0);
  return end + kDropoutPlaceTail;
}

}  // namespace

std::vector<std::int32_t> pack(const DropoutPlace& place, const Problem& problem) {
  validate(problem);
  const std::int64_t heads = place.heads == 0 ? problem.query_heads : place.heads;
  if (place.first_head < 0 || !is_size(heads) || place.first_head > heads - problem.query_heads)
    refuse_place("heads from " + std::to_string(place.first_head) + " on of " + std::to_string(heads) +
                 "; expected the problem's " + std::to_string(problem.query_heads) + " among them");
  std::vector<std::int32_t> packed(static_cast<std::size_t>(packed_size(problem)));
  packed[0] = static_cast<std::int32_t>(place.first_head);
  packed[1] = static_cast<std::int32_t>(heads);
  const std::int64_t unbroken = unbroken_tokens(problem);
  std::int32_t* const columns =
      pack_axis("row_eights", place.row_eights, problem.query_length, unbroken, packed.data() + kHeadNumbers);
  pack_axis("column_eights", place.column_eights, problem.key_length, unbroken, columns);
  return packed;
}

DropoutTables dropout_tables(const Problem& problem, std::span<const std::int32_t> place) {
  if (place.empty()) return {};
  const std::int32_t* const rows = place.data() + kHeadNumbers;
  return {place.data(), rows, rows + packed_eights(problem.query_length)};
}

std::uint32_t dropout_threshold(double dropout) { return static_cast<std::uint32_t>(std::lround(dropout * 65536)); }

double dropout_scale(double dropout) { return 1 / (1 - dropout_threshold(dropout) / 65536.0); }

void check_dropout(const std::string& call, const Problem& problem, const DropoutState& state,
                   std::span<const std::int32_t> place) {
  if (problem.dropout == 0) return;
  if (state.offset >= std::uint64_t{1} << 32)
    throw Error(Status::invalid_argument,
                call + ": the dropout offset is " + std::to_string(state.offset) + "; expected one below 2^32");
  if (!place.empty() && std::ssize(place) != packed_size(problem))
    throw Error(Status::invalid_argument, call + ": the dropout place has " + std::to_string(place.size()) +
                                              " numbers; expected " + std::to_string(packed_size(problem)) +
                                              ", which pack() gives for the problem");
}

}  // namespace flashmask
