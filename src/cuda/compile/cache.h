// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "cuda/compile/nvrtc.h"

/// Compiled kernels on disk, which processes and ranks share.
namespace flashmask::cuda::compile {

/// Returns the folder of compiled kernels: FLASHMASK_CACHE, else flashmask in XDG_CACHE_HOME, else ~/.cache/flashmask;
/// empty where none of them is set.
std::string cache_folder();

/// A folder of compiled kernels, by the text that each was made from. It holds code: it must belong to the user, and be
/// no one else's to write or read. Where it does not, cannot be made or is full, nothing is found and nothing kept.
class Cache {
 public:
  /// Makes the folder where there is none.
  explicit Cache(const std::string& folder);

  /// Returns what put() was given. A file that is damaged is removed, and not found.
  std::optional<Code> find(const std::string& key) const;
  /// Appears under its name as a whole or not at all.
  void put(const std::string& key, const Code& code) const;

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
