// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "flashmask/compiled_kernels.h"

/// The compiled kernels that a process has loaded.
namespace flashmask::cuda::compile {

/// A kernel that can be launched, and how it came about.
struct LoadedKernel {
  const void* kernel = nullptr;
  CompiledKernel made = {};  ///< but for its direction and seconds
};

/// Kernels by a key, each of which is made once and then stays. Any number of threads may ask; those that ask for one
/// kernel wait for the first of them, others do not.
class KernelTable {
 public:
  /// Returns the kernel of `key`: make()'s, or from memory the one that was made before. Where make() throws, so does
  /// this, and the next one to ask tries again.
  LoadedKernel find_or_make(const std::string& key, const std::function<LoadedKernel()>& make);

 private:
  struct Entry {
    std::mutex mutex;
    LoadedKernel loaded;
  };
  Entry& entry(const std::string& key);

  std::mutex mutex_;
  std::unordered_map<std::string, Entry> entries_;
};

/// Calls all of these, each in a thread of its own, and returns what they return, in their order. Throws what the first
/// of them throws, once all have ended.
std::vector<CompiledKernel> side_by_side(const std::vector<std::function<CompiledKernel()>>& tasks);

}  // namespace flashmask::cuda::compile
