// SPDX-License-Identifier: Apache-2.0
#include "cuda/compile/compile.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>

#include "cuda/compile/checksum.h"
#include "cuda/compile/sources.h"

namespace flashmask::cuda::compile {
namespace {

std::uint64_t checksum_of_sources() {
  std::uint64_t sum = checksum("");
  for (const Source& source : sources()) sum = checksum(source.text, checksum(source.name, sum));
  return sum;
}

std::string key_of(const Job& job, const std::string& version) {
  static const std::uint64_t of_sources = checksum_of_sources();
  return cache_key(job, version, of_sources);
}

/// Says that a kernel is being compiled, once that has taken a second, unless another one that lives says so.
class Notice {
 public:
  Notice() {
    const char* const log = std::getenv("FLASHMASK_LOG");
    const bool silent = log != nullptr && std::string_view(log) == "off";
    if (living_++ == 0 && !silent) waiting_ = std::thread([this] { wait(); });
  }
  ~Notice() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_one();
    if (waiting_.joinable()) waiting_.join();
    --living_;
  }
  Notice(const Notice&) = delete;
  Notice& operator=(const Notice&) = delete;

 private:
  void wait() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(1), [this] { return ended_; }))
      std::fputs("flashmask: compiling a kernel for this change of scores, which takes seconds once\n", stderr);
  }

  static inline std::atomic<int> living_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread waiting_;
};

}  // namespace

std::string text_of(const KernelCode& code, const std::string& change) {
  return code.headers + "namespace flashmask::cuda {\n" + change + "}\n";
}

std::pair<FoundCode, std::string> best_code(const KernelCode& code,
                                            const std::function<FoundCode(const std::string&)>& make) {
  constexpr int kFewSpills = 16;
  std::optional<std::pair<FoundCode, std::string>> best;
  for (const std::string& name : code.names) {
    FoundCode made = make(name);
    if (!best || made.code.spilled < best->first.code.spilled) best.emplace(std::move(made), name);
    if (best->first.code.spilled <= kFewSpills) break;
  }
  return *std::move(best);
}

FoundCode code_of(const Job& job, const Cache& cache) {
  const Nvrtc& compiler = nvrtc();
  return code_of(job, cache, compiler.version(), [&](const Job& of) { return compiler.compile(of); });
}

FoundCode code_of(const Job& job, const Cache& cache, const std::string& version,
                  const std::function<Code(const Job&)>& compile) {
  const std::string key = key_of(job, version);
  if (std::optional<Code> found = cache.find(key)) return {std::move(*found), KernelOrigin::disk};
  const Cache::Lock lock(cache, key);
  if (std::optional<Code> found = cache.find(key)) return {std::move(*found), KernelOrigin::disk};
  const Notice notice;
  FoundCode made{compile(job), KernelOrigin::compiler};
  cache.put(key, made.code);
  return made;
}

}  // namespace flashmask::cuda::compile
