// SPDX-License-Identifier: Apache-2.0
#include "cli/files/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "cli/base/memory_limit.h"
#include "flashmask/error.h"

namespace flashmask::cli {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(Status::io, path + ": cannot be read: " + why);
}

std::string last_error() { return std::system_category().message(errno); }

}  // namespace

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // opening a pipe would wait for its writer
  if (descriptor_ < 0) refuse(path_, last_error());
  struct stat status {};
  const bool plain = fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode);
  size_ = static_cast<std::size_t>(status.st_size);
  if (plain) return;
  close(descriptor_);
  refuse(path_, "it is no plain file");
}

InputFile::~InputFile() { close(descriptor_); }

FileBytes InputFile::read(std::size_t begin, std::size_t count) const {
  check_memory(static_cast<double>(count), path_ + ": reading it", "give a smaller file");
  FileBytes bytes(count);
  for (std::span<std::byte> rest = bytes.span(); !rest.empty();) {
    const ssize_t got = pread(descriptor_, rest.data(), rest.size(), static_cast<off_t>(begin + count - rest.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse(path_, last_error());
    if (got == 0) refuse(path_, "it ended while it was read");
    rest = rest.subspan(static_cast<std::size_t>(got));
  }
  return bytes;
}

}  // namespace flashmask::cli
