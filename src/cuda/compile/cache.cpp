// SPDX-License-Identifier: Apache-2.0
#include "cuda/compile/cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
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

namespace fs = std::filesystem;

// A file is this, the key, the kernel's name, its spilled bytes, the change that asked for it, its code, each behind
// its length, and a checksum.
constexpr std::string_view kMagic = "flashmask kernel 2\n";
/// A file's name is the key's checksum, and one of these behind it. A file that is not whole yet ends in six letters.
constexpr std::size_t kNameLength = 16;
constexpr const char *kKernel = ".kernel", *kLock = ".lock", *kPart = ".XXXXXX";

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
                          packed(std::to_string(code.spilled)) + packed(code.made_for) + packed(code.cubin);
  return all + words(checksum(all));
}

/// Returns whether a file is whole; `key` and `code` are then what it holds.
bool read_file(std::string_view bytes, std::string& key, Code& code) {
  if (bytes.size() < kMagic.size() + 8 || !bytes.starts_with(kMagic)) return false;
  const std::string_view all = bytes.substr(0, bytes.size() - 8);
  if (words(checksum(all)) != bytes.substr(all.size())) return false;
  std::string_view rest = all.substr(kMagic.size()), parts[5];
  for (std::string_view& part : parts)
    if (!take(rest, part)) return false;
  const auto& [of_key, kernel, spilled, made_for, cubin] = parts;
  key = of_key;
  code = {std::string(cubin), std::string(kernel), std::atoi(std::string(spilled).c_str()), std::string(made_for)};
  return true;
}

/// Says why nothing is kept in a folder; "": it is the user's own, and closed to others.
std::string refusal_of(const std::string& folder) {
  struct stat found {};
  if (folder.empty()) return "none of FLASHMASK_CACHE, XDG_CACHE_HOME and HOME names a folder";
  if (lstat(folder.c_str(), &found) != 0) return "it cannot be made or read: " + std::string(std::strerror(errno));
  if (!S_ISDIR(found.st_mode)) return "it is no folder";
  if (found.st_uid != geteuid()) return "it belongs to another user, and code of others is not run";
  if ((found.st_mode & 077) != 0) return "others may enter it, and code of others is not run: chmod 700";
  return "";
}

/// Takes a line off the front of a text.
std::string take_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string line(text.substr(0, end));
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

/// Reads what cache_key() wrote into the fields of a kernel.
void read_key(std::string_view key, CachedKernel& kernel) {
  kernel.compiler = take_line(key);
  take_line(key);  // the checksum of sources
  kernel.architecture = take_line(key);
  const std::string name = take_line(key);
  kernel.name = short_name(name);
  const std::size_t shape = name.find('<');
  kernel.shape = shape == std::string::npos ? "" : name.substr(shape);
  const std::size_t change = key.find("struct Change");
  kernel.code = change == std::string_view::npos ? key : key.substr(change, key.rfind('}') - change);
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

std::string cache_key(const Job& job, const std::string& version, std::uint64_t of_sources) {
  return version + "\n" + std::to_string(of_sources) + "\n" + job.architecture + "\n" + job.kernel + "\n" + job.text;
}

std::string short_name(const std::string& kernel) {
  const std::string name = kernel.substr(0, kernel.find('<'));
  constexpr std::string_view kOurs = "flashmask::cuda::";
  return name.starts_with(kOurs) ? name.substr(kOurs.size()) : name;
}

Cache::Cache(const std::string& folder, bool makes) {
  if (folder.empty()) return;
  std::error_code none;
  if (makes) {
    fs::create_directories(fs::path(folder).parent_path(), none);
    mkdir(folder.c_str(), 0700);  // fails where it exists, or cannot be made
  }
  if (refusal_of(folder).empty()) folder_ = folder;
}

std::string Cache::path(const std::string& key, const char* ending) const {
  char name[kNameLength + 1];
  std::snprintf(name, sizeof(name), "%016llx", static_cast<unsigned long long>(checksum(key)));
  return folder_ + "/" + name + ending;
}

std::optional<Code> Cache::find(const std::string& key) const {
  if (folder_.empty()) return {};
  const std::string name = path(key, kKernel), bytes = contents(name);
  if (bytes.empty()) return {};
  std::string of_key;
  Code code;
  if (read_file(bytes, of_key, code)) return of_key == key ? std::optional(code) : std::nullopt;
  unlink(name.c_str());
  return {};
}

void Cache::put(const std::string& key, const Code& code) const {
  if (folder_.empty()) return;
  std::string beside = path(key, kPart);
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
  if (!whole || std::rename(beside.c_str(), path(key, kKernel).c_str()) != 0) unlink(beside.c_str());
}

std::vector<CachedKernel> Cache::list() const {
  std::vector<CachedKernel> found;
  std::error_code none;
  for (fs::directory_iterator at(folder_, none), end; !none && at != end; at.increment(none)) {
    CachedKernel kernel;
    kernel.file = at->path().string();
    std::string key;
    Code code;
    const std::string bytes = at->path().extension() == kKernel ? contents(kernel.file) : "";
    struct stat facts {};
    if (!read_file(bytes, key, code) || stat(kernel.file.c_str(), &facts) != 0) continue;
    read_key(key, kernel);
    kernel.bytes = bytes.size();
    kernel.made = facts.st_mtime;
    kernel.spilled = code.spilled;
    kernel.change = code.made_for;
    found.push_back(std::move(kernel));
  }
  std::ranges::sort(found, [](const CachedKernel& a, const CachedKernel& b) {
    return a.made != b.made ? a.made > b.made : a.file < b.file;
  });
  return found;
}

std::size_t Cache::clear() const {
  std::size_t kernels = 0;
  std::error_code none;
  for (fs::directory_iterator at(folder_, none), end; !none && at != end; at.increment(none)) {
    const std::string name = at->path().filename().string();
    const bool ours = name.size() == kNameLength + 7 && name.find_first_not_of("0123456789abcdef") == kNameLength;
    const bool lock = name.size() == kNameLength + 5 && name.ends_with(kLock);
    if (!ours && !lock) continue;
    if (unlink(at->path().c_str()) == 0 && name.ends_with(kKernel)) ++kernels;
  }
  return kernels;
}

Cache::Lock::Lock(const Cache& cache, const std::string& key) {
  using namespace std::chrono_literals;
  if (cache.folder_.empty()) return;
  file_ = open(cache.path(key, kLock).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
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

namespace flashmask {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string to_string(KernelOrigin origin) {
  constexpr const char* kNames[] = {"compiler", "disk", "memory"};
  return kNames[static_cast<int>(origin)];
}

std::string kernel_cache_folder() {
  if (const std::string own = variable("FLASHMASK_CACHE"); !own.empty()) return own;
  if (const std::string all = variable("XDG_CACHE_HOME"); !all.empty()) return all + "/flashmask";
  const std::string home = variable("HOME");
  return home.empty() ? "" : home + "/.cache/flashmask";
}

std::string kernel_cache_refusal() {
  const std::string folder = kernel_cache_folder();
  const bool is_made_when_needed = !folder.empty() && access(folder.c_str(), F_OK) != 0;
  return is_made_when_needed ? "" : cuda::compile::refusal_of(folder);
}

std::vector<CachedKernel> cached_kernels() { return cuda::compile::Cache(kernel_cache_folder(), false).list(); }
std::size_t clear_cached_kernels() { return cuda::compile::Cache(kernel_cache_folder(), false).clear(); }

}  // namespace flashmask
