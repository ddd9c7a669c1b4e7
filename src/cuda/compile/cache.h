// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cuda/compile/nvrtc.h"
#include "flashmask/compiled_kernels.h"

/// Compiled kernels on disk, which processes and ranks share.
namespace flashmask::cuda::compile {

/// Returns everything that a job's code depends on: with the compiler's version, and a checksum of sources().
std::string cache_key(const Job& job, const std::string& version, std::uint64_t of_sources);

/// Takes the namespaces off a kernel's name as C++ writes it: sm80::column_kernel, and behind it what is in <…>.
std::string short_name(const std::string& kernel);

/// A folder of compiled kernels, by the text that each was made from. It holds code: it must belong to the user, and be
/// no one else's to write or read. Where it does not, cannot be made or is full, nothing is found and nothing kept.
class Cache {
 public:
  /// makes: whether the folder is made where there is none.
  explicit Cache(const std::string& folder, bool makes = true);

  /// Returns what put() was given. A file that is damaged is removed, and not found.
  std::optional<Code> find(const std::string& key) const;
  /// Appears under its name as a whole or not at all.
  void put(const std::string& key, const Code& code) const;

  /// Returns all that is there, newest first.
  std::vector<CachedKernel> list() const;
  /// Removes all that put() and Lock have made, and returns how many kernels there were.
  std::size_t clear() const;

  /// Keeps other processes from compiling the same key while it lives: a Lock of theirs waits, for at most a minute.
  class Lock {
   public:
    Lock(const Cache& cache, const std::string& key);
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    int file_ = -1;
  };

 private:
  std::string path(const std::string& key, const char* ending) const;

  std::string folder_;  // empty: there is none
};

}  // namespace flashmask::cuda::compile
