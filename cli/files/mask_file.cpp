// SPDX-License-Identifier: Apache-2.0
#include "cli/files/mask_file.h"

#include <cstring>
#include <filesystem>
#include <limits>
#include <vector>

#include "cli/files/input_file.h"
#include "flashmask/error.h"
#include "flashmask/executor.h"

namespace flashmask::cli {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw Error(Status::invalid_argument, name + ": " + what);
}

/// Runs `make`, which knows nothing of files, and adds the file's name to its errors.
template <class Make>
auto in_file(const std::string& name, const std::string& hint, const Make& make) {
  (void)default_executor().workers();  // throws where FLASHMASK_THREADS is wrong, which is no fault of the file
  try {
    return make();
  } catch (const Error& error) {
    throw Error(error.status(), name + ": " + error.what() + hint);
  }
}

Mask described(const Mask& mask, const std::string& name) {
  return {mask.lowered(), std::filesystem::path(name).filename().string(), mask.misfit()};
}

/// The shape of the array; leading dimensions that it lacks are 1.
MaskShape shape_of(const NpyArray& array) {
  const std::size_t rank = array.shape.size();
  return {rank < 4 ? 1 : array.dim(3), rank < 3 ? 1 : array.dim(2), array.dim(1), array.dim(0)};
}

Mask mask_from_scores(const NpyArray& array, std::span<const std::byte> data, const std::string& name) {
  const MaskShape shape = shape_of(array);
  const std::int64_t head = shape.rows * shape.columns;
  const DenseScores scores{data.data(), array.type, shape, {shape.heads * head, head, shape.columns, 1}};
  const char* hint = array.dtype == "|u1" ? "; bits from numpy.packbits need --packed-columns" : "";
  return in_file(name, hint, [&] { return from_dense(scores); });
}

Mask mask_from_bits(const NpyArray& array, std::span<const std::byte> data, std::int64_t columns,
                    const std::string& name) {
  if (array.dtype != "|u1") refuse(name, "dtype '" + array.dtype + "'; packed bits are uint8, from numpy.packbits");
  const std::int64_t bytes = (columns + 7) / 8;
  if (array.dim(0) != bytes) {
    refuse(name, "rows of " + std::to_string(array.dim(0)) + " bytes; --packed-columns " + std::to_string(columns) +
                     " takes " + std::to_string(bytes));
  }
  MaskShape shape = shape_of(array);
  shape.columns = columns;
  const std::span bits(reinterpret_cast<const std::uint8_t*>(data.data()), data.size());
  return in_file(name, "", [&] { return from_packed(shape, bits); });
}

/// Reads the header first; the data of a file that it rejects is never read.
struct NpyFile {
  explicit NpyFile(const std::string& path)
      : file(path),
        head(file.read(0, std::min(file.size(), kLargestNpyHeader))),
        array(
            describe_npy({reinterpret_cast<const char*>(head.span().data()), head.span().size()}, file.size(), path)) {}

  FileBytes data() const { return file.read(array.begin, array.bytes); }

  InputFile file;
  FileBytes head;
  NpyArray array;
};

/// One byte per element: 0, 1, or 2 for any other value.
template <class Element>
std::vector<std::uint8_t> narrowed(std::span<const std::byte> data) {
  constexpr std::uint8_t kNeither = 2;
  std::vector<std::uint8_t> bytes;
  bytes.reserve(data.size() / sizeof(Element));
  for (std::size_t i = 0; i < data.size(); i += sizeof(Element)) {
    Element element = 0;
    std::memcpy(&element, &data[i], sizeof element);
    bytes.push_back(element <= 1 ? static_cast<std::uint8_t>(element) : kNeither);
  }
  return bytes;
}

std::vector<std::uint8_t> narrowed(DenseType type, std::span<const std::byte> data) {
  if (type == DenseType::i64) return narrowed<std::uint64_t>(data);
  if (type == DenseType::i32) return narrowed<std::uint32_t>(data);
  if (type == DenseType::i16) return narrowed<std::uint16_t>(data);
  return narrowed<std::uint8_t>(data);
}

/// The number of scores along a side: `scores` if given, else whole blocks.
std::int64_t scores_of(std::int64_t blocks, std::int64_t block, std::optional<std::int64_t> scores,
                       const std::string& side, const std::string& name) {
  if (!scores) {
    if (blocks > std::numeric_limits<std::int32_t>::max() / block) refuse(name, "too many " + side);
    return blocks * block;
  }
  const std::int64_t expected = (*scores + block - 1) / block;
  if (blocks == expected) return *scores;
  refuse(name, std::to_string(blocks) + " blocks of " + side + "; " + std::to_string(*scores) + " " + side +
                   " in blocks of " + std::to_string(block) + " take " + std::to_string(expected));
}

}  // namespace

Mask mask_from_npy(const NpyArray& array, std::span<const std::byte> data, std::optional<std::int64_t> packed_columns,
                   const std::string& name) {
  const Mask mask =
      packed_columns ? mask_from_bits(array, data, *packed_columns, name) : mask_from_scores(array, data, name);
  return described(mask, name);
}

Mask read_mask_npy(const std::string& path, std::optional<std::int64_t> packed_columns) {
  const NpyFile npy(path);
  return mask_from_npy(npy.array, npy.data().span(), packed_columns, path);
}

BlockMap read_block_map(const std::string& path, std::int64_t block, std::optional<std::int64_t> rows,
                        std::optional<std::int64_t> columns) {
  const NpyFile npy(path);
  MaskShape shape = shape_of(npy.array);
  shape.rows = scores_of(shape.rows, block, rows, "rows", path);
  shape.columns = scores_of(shape.columns, block, columns, "columns", path);
  const std::vector<std::uint8_t> keep = narrowed(npy.array.type, npy.data().span());
  return in_file(path, "", [&] { return BlockMap(shape, block, keep); });
}

}  // namespace flashmask::cli
