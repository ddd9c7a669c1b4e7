// SPDX-License-Identifier: Apache-2.0
#include "flashmask/packed_mask.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/checks.h"
#include "flashmask/block_map.h"
#include "mask/blocks.h"
#include "mask/cell_words.h"

namespace flashmask {
namespace {

/// "FMmask" and the version of the layout as one number, which bytes of the other byte order do not begin with.
constexpr std::uint64_t kMagic = 0x0001'6b73'616d'4d46;

/// The start of the bytes. After it, without gaps: for intervals, four int32 [batch, heads, columns] and any kept
/// blocks; for bits, the offsets, the runs as three int32 each and the words of cells; then the two texts.
struct Header {
  std::uint64_t magic = kMagic;
  std::int64_t form = 0;
  std::int64_t batch = 0, heads = 0, rows = 0, columns = 0;
  std::int64_t runs = 0, partial_cells = 0;  ///< of a mask of bits
  std::int64_t block = 0;                    ///< of the block map beside intervals; 0: none
  std::int64_t why = 0, description = 0;     ///< bytes of each text
  std::int64_t misfit_ranges = 0;            ///< 0: no misfit
  std::int64_t misfit_batch = 0, misfit_head = 0, misfit_column = 0;

  MaskShape shape() const { return {batch, heads, rows, columns}; }
  bool has_bits() const { return form == static_cast<std::int64_t>(MaskForm::bits); }
};
// No padding: equal masks give equal bytes.
static_assert(std::has_unique_object_representations_v<Header>);

Header header_of(const Mask& mask) {
  const LoweredMask& lowered = mask.lowered();
  const MaskShape& shape = mask.shape();
  Header header;
  header.form = static_cast<std::int64_t>(lowered.form());
  header.batch = shape.batch;
  header.heads = shape.heads;
  header.rows = shape.rows;
  header.columns = shape.columns;
  if (lowered.form() == MaskForm::bits) {
    header.runs = std::ssize(lowered.bits().cells().runs);
    header.partial_cells = lowered.bits().partial_cells();
  }
  if (lowered.blocks() != nullptr) header.block = lowered.blocks()->block();
  header.why = std::ssize(lowered.why());
  header.description = std::ssize(mask.description());
  if (mask.misfit()) {
    const Misfit& misfit = *mask.misfit();
    header.misfit_ranges = misfit.ranges;
    header.misfit_batch = misfit.batch;
    header.misfit_head = misfit.head;
    header.misfit_column = misfit.column;
  }
  return header;
}

/// A run without the padding of Run.
using RunNumbers = std::array<std::int32_t, 3>;

/// Calls part(pointer to elements, how many) for each part of a mask after its header, in order.
template <class Part>
void for_each_part(const Mask& mask, const Part& part) {
  const LoweredMask& lowered = mask.lowered();
  const MaskShape& shape = mask.shape();
  if (lowered.form() == MaskForm::intervals) {
    const IntervalMask& intervals = lowered.intervals();
    const auto columns = static_cast<std::size_t>(shape.batch * shape.heads * shape.columns);
    for (const std::int32_t* values :
         {intervals.first_begin(), intervals.first_end(), intervals.second_begin(), intervals.second_end()})
      part(values, columns);
  } else {
    const BitMask& bits = lowered.bits();
    std::vector<RunNumbers> runs;
    runs.reserve(bits.cells().runs.size());
    for (const Run& run : bits.cells().runs) runs.push_back({run.begin, run.end, static_cast<std::int32_t>(run.kind)});
    part(bits.cells().offsets.data(), bits.cells().offsets.size());
    part(runs.data(), runs.size());
    part(bits.words(), static_cast<std::size_t>(bits.partial_cells()) * kCellSize);
  }
  if (lowered.blocks() != nullptr) part(lowered.blocks()->row(0, 0, 0), lowered.blocks()->memory_bytes());
  part(lowered.why().data(), lowered.why().size());
  part(mask.description().data(), mask.description().size());
}

/// Reads arrays from the front of the bytes; allocates an array only after its bytes are known to be there.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}

  /// Reads as many values as the product of `sizes`, which are at least 0; the product may overflow any integer.
  template <class T>
  std::vector<T> take(const char* name, std::initializer_list<std::int64_t> sizes) {
    const std::size_t count = count_within(name, sizes, rest_.size() / sizeof(T));
    std::vector<T> values(count);
    if (count != 0) std::memcpy(values.data(), rest_.data(), count * sizeof(T));
    rest_ = rest_.subspan(count * sizeof(T));
    return values;
  }

  std::string take_text(const char* name, std::int64_t size) {
    const std::vector<char> text = take<char>(name, {size});
    return {text.begin(), text.end()};
  }

  void expect_end() const {
    if (!rest_.empty()) refuse("unpack: " + counted(rest_.size(), "byte") + " follow the mask; give its bytes alone");
  }

 private:
  static std::size_t count_within(const char* name, std::initializer_list<std::int64_t> sizes, std::size_t most) {
    if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return 0;
    std::size_t product = 1;
    for (const std::int64_t size : sizes) {
      if (static_cast<std::size_t>(size) > most / product)
        refuse(std::string("unpack: the bytes end inside ") + name + "; give all that pack() wrote");
      product *= static_cast<std::size_t>(size);
    }
    return product;
  }

  std::span<const std::byte> rest_;
};

[[noreturn]] void refuse_field(const std::string& field, std::int64_t given, const std::string& expected) {
  refuse("unpack: " + field + " is " + grouped(given) + "; expected " + expected +
         ": the bytes are damaged or no packed mask");
}

void require_in(const std::string& field, std::int64_t given, std::int64_t first, std::int64_t last) {
  if (given < first || given > last) refuse_field(field, given, grouped(first) + " to " + grouped(last));
}

void check_misfit(const Header& header) {
  if (header.misfit_ranges == 0) {
    for (const std::int64_t place : {header.misfit_batch, header.misfit_head, header.misfit_column})
      if (place != 0) refuse_field("the place of no misfit", place, "0");
    return;
  }
  require_in("misfit.ranges", header.misfit_ranges, 3, header.rows);
  require_in("misfit.batch", header.misfit_batch, 0, header.batch - 1);
  require_in("misfit.head", header.misfit_head, 0, header.heads - 1);
  require_in("misfit.column", header.misfit_column, 0, header.columns - 1);
}

Header take_header(Reader& bytes) {
  const Header header = bytes.take<Header>("the header", {1}).front();
  if (header.magic != kMagic)
    refuse("unpack: the bytes do not begin as a packed mask of this version and byte order does; pack it again here");
  require_in("form", header.form, 0, static_cast<std::int64_t>(MaskForm::bits));
  check_shape("unpack", {header.batch, header.heads, header.rows, header.columns});
  constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();
  const std::int64_t most_of_bits = header.has_bits() ? std::numeric_limits<std::int64_t>::max() : 0;
  require_in("runs", header.runs, 0, most_of_bits);
  require_in("partial cells", header.partial_cells, 0, most_of_bits);
  require_in("block", header.block, 0, header.has_bits() ? 0 : kLargest);
  if (header.block % kWholeTiles != 0)
    refuse_field("block", header.block, "0 or a multiple of " + std::to_string(kWholeTiles));
  require_in("the length of the reason", header.why, 0, kLargest);
  require_in("the length of the description", header.description, 0, kLargest);
  check_misfit(header);
  return header;
}

IntervalMask take_intervals(Reader& bytes, const Header& header) {
  std::array<std::vector<std::int32_t>, 4> values;
  for (std::vector<std::int32_t>& array : values)
    array = bytes.take<std::int32_t>("the row ranges", {header.batch, header.heads, header.columns});
  IntervalMask mask(header.shape());
  for (std::size_t i = 0; i < values[0].size(); ++i) {
    const Interval first{values[0][i], values[1][i]};
    const Interval second{values[2][i], values[3][i]};
    mask.set(i, first, second);
    if (mask.first(i) != first || mask.second(i) != second)
      refuse("unpack: the row ranges of column " + grouped(static_cast<std::int64_t>(i)) +
             ", counted through heads, are not in normal form: the bytes are damaged");
  }
  return mask;
}

/// Throws if a partial cell has bits outside its first `rows` rows and `columns` columns, which exist.
void check_cell_ends(const std::uint64_t* words, std::int64_t rows, std::int64_t columns, std::int64_t list) {
  std::uint64_t outside = 0;
  for (std::int64_t r = 0; r < kCellSize; ++r) outside |= words[r] & ~(r < rows ? low_bits(columns) : 0);
  if (outside != 0)
    refuse("unpack: list " + grouped(list) + " has a cell with bits past the end of the mask: the bytes are damaged");
}

/// Throws if the mask has bits past its end, which would be scores that do not exist.
void check_ends(const BitMask& mask) {
  const MaskShape& shape = mask.shape();
  for (std::int64_t list = 0; list + 1 < std::ssize(mask.cells().offsets); ++list) {
    const std::int64_t rows = shape.rows - list % mask.cell_rows() * kCellSize;
    for (std::int64_t i = mask.cells().begin(list); i < mask.cells().end(list); ++i) {
      const Run& run = mask.cells().run(i);
      for (std::int64_t cell = run.begin; run.kind == TileKind::partial && cell < run.end; ++cell)
        check_cell_ends(mask.words(i) + (cell - run.begin) * kCellSize, rows, shape.columns - cell * kCellSize, list);
    }
  }
}

BitMask take_bits(Reader& bytes, const Header& header) {
  const std::int64_t cell_rows = (header.rows + kCellSize - 1) / kCellSize;
  RunLists cells;
  cells.offsets = bytes.take<std::int64_t>("the offsets", {header.batch, header.heads, cell_rows});
  const std::vector<std::int64_t> end = bytes.take<std::int64_t>("the offsets", {1});
  cells.offsets.push_back(end.front());
  for (const auto& [begin, run_end, kind] : bytes.take<RunNumbers>("the runs", {header.runs})) {
    require_in("the kind of a run", kind, 1, static_cast<std::int32_t>(TileKind::partial));
    cells.runs.push_back({begin, run_end, static_cast<TileKind>(kind)});
  }
  BitMask mask(header.shape(), std::move(cells),
               bytes.take<std::uint64_t>("the words of cells", {header.partial_cells, kCellSize}));
  check_ends(mask);
  return mask;
}

std::shared_ptr<const BlockMap> take_blocks(Reader& bytes, const Header& header) {
  if (header.block == 0) return nullptr;
  const auto blocks = [&](std::int64_t size) { return (size + header.block - 1) / header.block; };
  const std::vector<std::uint8_t> keep = bytes.take<std::uint8_t>(
      "the kept blocks", {header.batch, header.heads, blocks(header.rows), blocks(header.columns)});
  return std::make_shared<const BlockMap>(header.shape(), header.block, keep);
}

LoweredMask take_lowered(Reader& bytes, const Header& header) {
  if (header.has_bits()) {
    auto bits = std::make_shared<const BitMask>(take_bits(bytes, header));
    return {std::move(bits), bytes.take_text("the reason", header.why)};
  }
  auto intervals = std::make_shared<const IntervalMask>(take_intervals(bytes, header));
  auto blocks = take_blocks(bytes, header);
  return {std::move(intervals), bytes.take_text("the reason", header.why), std::move(blocks)};
}

std::optional<Misfit> misfit_of(const Header& header) {
  if (header.misfit_ranges == 0) return std::nullopt;
  return Misfit{header.misfit_batch, header.misfit_head, header.misfit_column, header.misfit_ranges};
}

}  // namespace

std::size_t packed_bytes(const Mask& mask) {
  std::size_t bytes = sizeof(Header);
  for_each_part(mask, [&](const auto* values, std::size_t count) { bytes += count * sizeof *values; });
  return bytes;
}

void pack(const Mask& mask, std::span<std::byte> bytes) {
  const std::size_t needed = packed_bytes(mask);
  if (bytes.size() < needed)
    refuse("pack: the buffer has " + counted(bytes.size(), "byte") + "; packed_bytes() says " +
           grouped(static_cast<std::int64_t>(needed)));
  const Header header = header_of(mask);
  std::byte* to = bytes.data();
  const auto write = [&](const auto* values, std::size_t count) {
    if (count != 0) std::memcpy(to, values, count * sizeof *values);
    to += count * sizeof *values;
  };
  write(&header, 1);
  for_each_part(mask, write);
}

Mask unpack(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  const Header header = take_header(reader);
  LoweredMask lowered = take_lowered(reader, header);
  std::string description = reader.take_text("the description", header.description);
  reader.expect_end();
  return {std::move(lowered), std::move(description), misfit_of(header)};
}

}  // namespace flashmask
