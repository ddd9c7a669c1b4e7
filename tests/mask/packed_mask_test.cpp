// SPDX-License-Identifier: Apache-2.0
#include "flashmask/packed_mask.h"

#include <cstring>
#include <limits>
#include <optional>

#include "flashmask/block_map.h"
#include "flashmask/block_map_builders.h"
#include "flashmask/builders.h"
#include "kit/corpus.h"
#include "mask/visibility.h"

namespace flashmask {
namespace {

using testing::refusal;
using Bytes = std::vector<std::byte>;

Bytes packed(const Mask& mask) {
  Bytes bytes(packed_bytes(mask));
  pack(mask, bytes);
  return bytes;
}

bool same_form(const LoweredMask& a, const LoweredMask& b) {
  if (a.form() != b.form() || (a.blocks() == nullptr) != (b.blocks() == nullptr)) return false;
  return a.form() == MaskForm::intervals ? a.intervals() == b.intervals() : a.bits() == b.bits();
}

std::string text(const std::optional<Misfit>& misfit) {
  if (!misfit) return "none";
  return std::to_string(misfit->batch) + " " + std::to_string(misfit->head) + " " + std::to_string(misfit->column) +
         " " + std::to_string(misfit->ranges);
}

void expect_same(const Mask& given, const Mask& expected) {
  EXPECT_EQ(given.shape(), expected.shape());
  EXPECT_EQ(given.description(), expected.description());
  EXPECT_EQ(given.lowered().why(), expected.lowered().why());
  EXPECT_TRUE(same_form(given.lowered(), expected.lowered()));
  EXPECT_EQ(expand(given), expand(expected));
  EXPECT_EQ(text(given.misfit()), text(expected.misfit()));
}

/// A per-head, per-batch mask of three ranges a column.
Mask stripes() {
  return from_predicate({2, 3, 70, 150}, [](std::int64_t batch, std::int64_t head, std::int64_t row,
                                            std::int64_t column) { return (row + column) / (5 + head) % 3 != batch; });
}

Mask in_blocks() { return masks::causal(300, 260) & block_maps::butterfly({2, 2, 300, 260}, 128, std::nullopt); }

Mask in_whole_blocks() { return masks::sliding_window(300, 520, 90) & block_maps::random({1, 1, 300, 520}, 128, 2, 7); }

TEST(PackedMask, IsTheMaskAgain) {
  for (const corpus::Case& one : corpus::cases(3)) {
    SCOPED_TRACE(one.name());
    const Mask mask = one.mask();
    expect_same(unpack(packed(mask)), mask);
  }
  for (const Mask& mask : {stripes(), in_blocks(), in_whole_blocks()}) {
    SCOPED_TRACE(mask.description());
    expect_same(unpack(packed(mask)), mask);
  }
  EXPECT_EQ(stripes().lowered().form(), MaskForm::bits);
  EXPECT_NE(in_whole_blocks().lowered().blocks(), nullptr);
}

TEST(PackedMask, OfNothingIsTheMaskAgain) {
  for (const auto& [rows, columns] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 0}, {0, 9}, {9, 0}}) {
    expect_same(unpack(packed(masks::full(rows, columns))), masks::full(rows, columns));
    const LoweredMask bits = lower(masks::full(rows, columns), MaskForm::bits);
    expect_same(unpack(packed({bits, "bits"})), {bits, "bits"});
  }
}

TEST(PackedMask, EqualMasksHaveEqualBytes) { EXPECT_EQ(packed(stripes()), packed(stripes())); }

TEST(PackedMask, MayLieAtAnyAddress) {
  const Bytes bytes = packed(stripes());
  Bytes moved(bytes.size() + 1);
  std::ranges::copy(bytes, moved.begin() + 1);
  expect_same(unpack(std::span(moved).subspan(1)), stripes());
}

TEST(PackedMask, RefusesABufferThatIsTooSmall) {
  const Mask mask = masks::causal(4, 4);
  Bytes bytes(packed_bytes(mask) - 1, std::byte{7});
  EXPECT_NE(refusal([&] { pack(mask, bytes); }).find("packed_bytes() says"), std::string::npos);
  EXPECT_EQ(bytes, Bytes(bytes.size(), std::byte{7}));
}

TEST(PackedMask, RefusesEveryCut) {
  for (const Mask& mask : {stripes(), in_whole_blocks(), masks::causal(9, 9)}) {
    Bytes bytes = packed(mask);
    for (std::size_t size = 0; size < bytes.size(); size += size < 200 ? 1 : 37)
      EXPECT_EQ(refusal([&] { unpack(std::span(bytes).first(size)); }).substr(0, 8), "unpack: ") << size;
    bytes.push_back({});
    EXPECT_EQ(refusal([&] { unpack(bytes); }), "unpack: 1 byte follow the mask; give its bytes alone");
  }
}

/// What unpack() says when the 8-byte field at `offset` of the header is `value`.
std::string refusal_of(const Mask& mask, std::size_t offset, std::int64_t value) {
  Bytes bytes = packed(mask);
  std::memcpy(bytes.data() + offset, &value, sizeof value);
  return refusal([&] { unpack(bytes); });
}

TEST(PackedMask, RefusesAHeaderThatLies) {
  constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  for (std::size_t offset = 0; offset < 120; offset += 8) {
    for (const std::int64_t value : {std::int64_t{-1}, std::int64_t{1} << 31, huge, -huge}) {
      for (const Mask& mask : {stripes(), in_whole_blocks()})
        EXPECT_NE(refusal_of(mask, offset, value), "no error") << offset << " " << value;
    }
  }
}

TEST(PackedMask, NamesTheFieldThatIsWrong) {
  EXPECT_NE(refusal_of(stripes(), 0, 1).find("do not begin as a packed mask"), std::string::npos);
  EXPECT_NE(refusal_of(stripes(), 8, 2).find("form is 2; expected 0 to 1"), std::string::npos);
  // More columns than any memory holds, and no bytes for them.
  EXPECT_NE(refusal_of(masks::causal(9, 9), 40, (std::int64_t{1} << 31) - 1).find("end inside the row ranges"),
            std::string::npos);
  EXPECT_NE(refusal_of(in_whole_blocks(), 64, 64).find("block is 64; expected 0 or a multiple of 128"),
            std::string::npos);
}

/// Bytes of which one changed are refused, or say another mask, which packs to them.
void expect_meaning(const Bytes& bytes) {
  std::optional<Mask> mask;
  const std::string refused = refusal([&] { mask = unpack(bytes); });
  if (mask) {
    EXPECT_EQ(packed(*mask), bytes);
  } else {
    EXPECT_NE(refused, "no error");
  }
}

TEST(PackedMask, HasNoByteWithoutAMeaning) {
  for (const Mask& mask : {stripes(), in_whole_blocks()}) {
    const Bytes bytes = packed(mask);
    for (std::size_t i = 0; i < bytes.size(); i += i < 200 ? 1 : 13) {
      SCOPED_TRACE(i);
      Bytes changed = bytes;
      changed[i] ^= std::byte{1};
      expect_meaning(changed);
      changed[i] ^= std::byte{0x81};
      expect_meaning(changed);
    }
  }
}

TEST(PackedMask, RefusesBitsPastTheEnd) {
  std::vector<std::uint64_t> words(64, 1);
  words[63] = 2;
  const auto refusal_of_bits = [&](const MaskShape& shape) {
    const LoweredMask bits(std::make_shared<const BitMask>(shape, RunLists{{0, 1}, {{0, 1, TileKind::partial}}}, words),
                           "");
    return refusal([&] { unpack(packed({bits, ""})); });
  };
  EXPECT_EQ(refusal_of_bits({1, 1, 64, 2}), "no error");
  EXPECT_NE(refusal_of_bits({1, 1, 64, 1}).find("bits past the end"), std::string::npos);
  EXPECT_NE(refusal_of_bits({1, 1, 63, 2}).find("bits past the end"), std::string::npos);
}

}  // namespace
}  // namespace flashmask
