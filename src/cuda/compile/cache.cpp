// SPDX-License-Identifier: Apache-2.0
#include "cuda/compile/cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>
#include <thread>

#include "cuda/compile/checksum.h"

namespace flashmask::cuda::compile {
namespace {

// A file is this, the key, the kernel's name, its spilled bytes, its code, each behind its length, and a checksum.
constexpr std::string_view kMagic = "flashmask kernel 1\n";

std::string words(std::uint64_t number) {
  std::string bytes(sizeof(number), 0);
  std::memcpy(bytes.data(), &number, sizeof(number));
  return bytes;
}

std::string packed(std::string_view text) { return words(text.size()) + std::string(text); }

/// Takes what packed() made off the front of `bytes`.
bool take(std::string_view& bytes, std::string_view& text) {
  std::uint64_t size = 0;
  if (bytes.size() < sizeof(size)) return false;
  std::memcpy(&size, bytes.data(), sizeof(size));
  bytes.remove_prefix(sizeof(size));
  if (size > bytes.size()) return false;
  text = bytes.substr(0, size);
  bytes.remove_prefix(size);
  return true;
}

std::string file_of(const std::string& key, const Code& code) {
  const std::string all = std::string(kMagic) + packed(key) + packed(code.kernel) +
                          packed(std::to_string(code.spilled)) + packed(code.cubin);
  return all + words(checksum(all));
}

/// Returns whether a file is whole; `key` and `code` are then what it holds.
bool read_file(std::string_view bytes, std::string& key, Code& code) {
  if (bytes.size() < kMagic.size() + 8 || !bytes.starts_with(kMagic)) return false;
  const std::string_view all = bytes.substr(0, bytes.size() - 8);
  if (words(checksum(all)) != bytes.substr(all.size())) return false;
  std::string_view rest = all.substr(kMagic.size()), of_key, kernel, spilled, cubin;
  if (!take(rest, of_key) || !take(rest, kernel) || !take(rest, spilled) || !take(rest, cubin)) return false;
  key = of_key;
  code = {std::string(cubin), std::string(kernel), std::atoi(std::string(spilled).c_str())};
  return true;
}

/// Whether the folder is the user's own, and closed to others.
bool is_private(const std::string& folder) {
  struct stat found {};
  return lstat(folder.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == geteuid() &&
         (found.st_mode & 077) == 0;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string cache_folder() {
  if (const std::string own = variable("FLASHMASK_CACHE"); !own.empty()) return own;
  if (const std::string all = variable("XDG_CACHE_HOME"); !all.empty()) return all + "/flashmask";
  const std::string home = variable("HOME");
  return home.empty() ? "" : home + "/.cache/flashmask";
}

Cache::Cache(const std::string& folder) {
  if (folder.empty()) return;
  std::error_code none;
  std::filesystem::create_directories(std::filesystem::path(folder).parent_path(), none);
  mkdir(folder.c_str(), 0700);  // fails where it exists, or cannot be made
  if (is_private(folder)) folder_ = folder;
}

std::string Cache::path(const std::string& key, const char* ending) const {
  char name[17];
  std::snprintf(name, sizeof(name), "%016llx", static_cast<unsigned long long>(checksum(key)));
  return folder_ + "/" + name + ending;
}

std::optional<Code> Cache::find(const std::string& key) const {
  if (folder_.empty()) return {};
  const std::string name = path(key, ".kernel");
  std::ifstream file(name, std::ios::binary);
  if (!file) return {};
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  std::string of_key;
  Code code;
  if (read_file(bytes, of_key, code)) return of_key == key ? std::optional(code) : std::nullopt;
  unlink(name.c_str());
  return {};
}

void Cache::put(const std::string& key, const Code& code) const {
  if (folder_.empty()) return;
  std::string beside = path(key, ".XXXXXX");
  const int file = mkstemp(beside.data());  // mode 0600
  if (file < 0) return;
  const std::string bytes = file_of(key, code);
  bool whole = true;
  for (std::size_t done = 0; whole && done < bytes.size();) {
    const ssize_t more = write(file, bytes.data() + done, bytes.size() - done);
    whole = more > 0;
    done += whole ? static_cast<std::size_t>(more) : 0;
  }
  whole = close(file) == 0 && whole;
  if (!whole || std::rename(beside.c_str(), path(key, ".kernel").c_str()) != 0) unlink(beside.c_str());
}

Cache::Lock::Lock(const Cache& cache, const std::string& key) {
  using namespace std::chrono_literals;
  if (cache.folder_.empty()) return;
  file_ = open(cache.path(key, ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  const auto until = std::chrono::steady_clock::now() + 60s;
  while (file_ >= 0 && flock(file_, LOCK_EX | LOCK_NB) != 0) {
    // Where there are no locks, as on some network file systems, each process compiles.
    if (errno != EWOULDBLOCK || std::chrono::steady_clock::now() > until) return;
    std::this_thread::sleep_for(20ms);
  }
}

Cache::Lock::~Lock() {
  if (file_ >= 0) close(file_);
}

}  // namespace flashmask::cuda::compile
