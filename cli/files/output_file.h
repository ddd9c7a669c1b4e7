// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace flashmask::cli {

/// A file that appears whole or not at all. The constructor already proves that it can be written, so that a long run
/// does not end in an error; commit() puts the contents in place by renaming.
class OutputFile {
 public:
  /// Throws Status::io when a file cannot be created there.
  explicit OutputFile(std::string path);
  /// Removes the temporary file if it was not committed.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void commit(std::string_view contents);
  const std::string& path() const { return path_; }

 private:
  void write_all(std::string_view contents);

  std::string path_, temporary_;
  int descriptor_ = -1;
};

}  // namespace flashmask::cli
