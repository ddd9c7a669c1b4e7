// SPDX-License-Identifier: Apache-2.0
#include "cuda/compile/kernel_table.h"

#include <chrono>
#include <exception>
#include <future>

namespace flashmask::cuda::compile {

KernelTable::Entry& KernelTable::entry(const std::string& key) {
  const std::lock_guard lock(mutex_);
  return entries_[key];  // which never moves
}

LoadedKernel KernelTable::find_or_make(const std::string& key, const std::function<LoadedKernel()>& make) {
  Entry& of_key = entry(key);
  const std::lock_guard lock(of_key.mutex);
  if (of_key.loaded.kernel != nullptr) return of_key.loaded;
  const auto begin = std::chrono::steady_clock::now();
  LoadedKernel made = make();
  made.made.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  of_key.loaded = made;
  of_key.loaded.made.origin = KernelOrigin::memory;
  of_key.loaded.made.seconds = 0;
  return made;
}

std::vector<CompiledKernel> side_by_side(const std::vector<std::function<CompiledKernel()>>& tasks) {
  std::vector<std::future<CompiledKernel>> others;
  // A single task, and the last of several, take this thread: deferred, they run when they are asked for.
  for (std::size_t i = 0; i < tasks.size(); ++i)
    others.push_back(std::async(i + 1 < tasks.size() ? std::launch::async : std::launch::deferred, tasks[i]));
  if (!others.empty()) others.back().wait();
  std::vector<CompiledKernel> made;
  std::exception_ptr failed;
  for (std::future<CompiledKernel>& other : others) {
    try {
      made.push_back(other.get());
    } catch (...) {
      if (failed == nullptr) failed = std::current_exception();
    }
  }
  if (failed != nullptr) std::rethrow_exception(failed);
  return made;
}

}  // namespace flashmask::cuda::compile
