// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace flashmask::cli {

/// Bytes of a file, uninitialised until they are read; aligned for any number.
class FileBytes {
 public:
  explicit FileBytes(std::size_t size) : size_(size), bytes_(std::make_unique_for_overwrite<Array>(size)) {}

  std::span<std::byte> span() { return {bytes_.get(), size_}; }
  std::span<const std::byte> span() const { return {bytes_.get(), size_}; }

 private:
  using Array = std::byte[];  // NOLINT(modernize-avoid-c-arrays): of a size known at run time

  std::size_t size_;
  std::unique_ptr<Array> bytes_;
};

/// A file that is read, not mapped: if it shrinks meanwhile, that is an error with a message, not a bus error.
class InputFile {
 public:
  /// Throws Status::io when it is not a plain file, or cannot be read.
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  std::size_t size() const { return size_; }

  /// Reads `count` bytes from `begin`. Throws Status::io when they are not there, Status::out_of_memory when they are
  /// too many.
  FileBytes read(std::size_t begin, std::size_t count) const;

 private:
  std::string path_;
  std::size_t size_ = 0;
  int descriptor_ = -1;
};

}  // namespace flashmask::cli
