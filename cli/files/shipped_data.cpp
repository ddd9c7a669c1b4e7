// SPDX-License-Identifier: Apache-2.0
#include "cli/files/shipped_data.h"

#include <filesystem>

#include "flashmask/error.h"

namespace flashmask::cli {

namespace fs = std::filesystem;

std::string shipped_data(const std::string& name) {
  std::error_code unknown;
  const fs::path executable = fs::read_symlink("/proc/self/exe", unknown);
  const fs::path path = executable.parent_path().parent_path() / FLASHMASK_DATA_DIR / name;
  if (fs::is_regular_file(path, unknown)) return path.string();
  throw Error(Status::io, name + " is not beside the command (looked for " + path.string() +
                              "); name a CSV of lengths on the command line");
}

}  // namespace flashmask::cli
