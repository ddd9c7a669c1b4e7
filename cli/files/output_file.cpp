// SPDX-License-Identifier: Apache-2.0
#include "cli/files/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "flashmask/error.h"

namespace flashmask::cli {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(Status::io, path + ": cannot be written: " + why + "; give a path in a folder you may write to");
}

std::string last_error() { return std::system_category().message(errno); }

/// Devices and pipes cannot be replaced by renaming.
void check_replaceable(const std::string& path) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  if (std::filesystem::is_directory(status)) refuse(path, "it is a folder");
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) refuse(path, "it is no plain file");
  if (std::filesystem::exists(status) && access(path.c_str(), W_OK) != 0) refuse(path, last_error());
}

}  // namespace

OutputFile::OutputFile(std::string path)
    : path_(std::move(path)), temporary_(path_ + ".partial-" + std::to_string(getpid())) {
  check_replaceable(path_);
  descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) refuse(path_, last_error());
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  close(descriptor_);
  std::remove(temporary_.c_str());
}

void OutputFile::write_all(std::string_view contents) {
  while (!contents.empty()) {
    const ssize_t written = write(descriptor_, contents.data(), contents.size());
    if (written < 0 && errno != EINTR) refuse(path_, last_error());
    if (written > 0) contents.remove_prefix(static_cast<std::size_t>(written));
  }
}

void OutputFile::commit(std::string_view contents) {
  write_all(contents);
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) refuse(path_, last_error());
  close(descriptor_);
  descriptor_ = -1;
}

}  // namespace flashmask::cli
