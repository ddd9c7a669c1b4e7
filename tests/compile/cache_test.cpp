// SPDX-License-Identifier: Apache-2.0
#include "cuda/compile/cache.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <thread>

#include "cuda/compile/compile.h"

/// Compiled kernels on disk.
namespace flashmask::cuda::compile {
namespace {

namespace fs = std::filesystem;

/// An empty folder that only the user may read, while a test runs.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "flashmask-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() {
    chmod(path_.c_str(), 0700);
    fs::remove_all(path_);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const fs::path& path() const { return path_; }
  std::string cache() const { return (path_ / "a" / "kernels").string(); }
  /// Returns the only file with this ending in the cache.
  fs::path file(const std::string& ending) const {
    for (const auto& entry : fs::directory_iterator(cache()))
      if (entry.path().extension() == ending) return entry.path();
    return {};
  }
  std::ptrdiff_t files() const { return std::distance(fs::directory_iterator(cache()), fs::directory_iterator()); }

 private:
  fs::path path_;
};

const Code kCode{std::string("cubin\0with zeros", 16), "_Z6kernelv", 8};

TEST(KernelCache, FindsWhatItWasGiven) {
  const Folder folder;
  const Cache cache(folder.cache());
  EXPECT_EQ(cache.find("key"), std::nullopt);
  cache.put("key", kCode);
  EXPECT_EQ(Cache(folder.cache()).find("key"), kCode);
  EXPECT_EQ(cache.find("another key"), std::nullopt);
  struct stat found {};
  ASSERT_EQ(stat(folder.cache().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700U);
  EXPECT_EQ(folder.files(), 1) << "something was left beside the kernel";
}

TEST(KernelCache, RemovesFilesThatAreDamaged) {
  const Folder folder;
  const Cache cache(folder.cache());
  for (const int damage : {0, 1, 2}) {
    cache.put("key", kCode);
    const fs::path file = folder.file(".kernel");
    const auto size = fs::file_size(file);
    if (damage == 0) fs::resize_file(file, size - 1);
    if (damage == 1) fs::resize_file(file, 3);
    if (damage == 2) {
      std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
      bytes.seekp(static_cast<std::streamoff>(size) - 12);
      bytes.put('!');
    }
    EXPECT_EQ(cache.find("key"), std::nullopt) << damage;
    EXPECT_FALSE(fs::exists(file)) << damage;
  }
}

/// A file whose name another key has too.
TEST(KernelCache, TakesNoOtherKeysKernel) {
  const Folder folder;
  const Cache cache(folder.cache());
  cache.put("key", kCode);
  const fs::path of_key = folder.file(".kernel"), kept = folder.path() / "kept";
  fs::rename(of_key, kept);
  cache.put("another", kCode);
  const fs::path of_another = folder.file(".kernel");
  fs::rename(kept, of_another);
  EXPECT_EQ(cache.find("another"), std::nullopt);
}

TEST(KernelCache, KeepsNothingWhereOthersMayWrite) {
  const Folder folder;
  fs::create_directories(folder.cache());
  for (const mode_t mode : {0755U, 0770U}) {
    chmod(folder.cache().c_str(), mode);
    const Cache cache(folder.cache());
    cache.put("key", kCode);
    EXPECT_EQ(cache.find("key"), std::nullopt);
    EXPECT_EQ(folder.files(), 0);
  }
}

/// Root writes everywhere: then the folder is one that cannot be made.
TEST(KernelCache, DoesWithoutAFolderThatCannotBeMadeOrWritten) {
  const Folder folder;
  std::ofstream(folder.path() / "a") << "a file";
  for (const std::string& path : {folder.cache(), std::string("/proc/flashmask"), std::string()}) {
    const Cache cache(path);
    cache.put("key", kCode);
    EXPECT_EQ(cache.find("key"), std::nullopt);
    const Cache::Lock lock(cache, "key");
  }
}

TEST(KernelCache, IsWhereTheEnvironmentSays) {
  const auto with = [](const char* own, const char* all, const char* home) {
    setenv("FLASHMASK_CACHE", own, 1);
    setenv("XDG_CACHE_HOME", all, 1);
    setenv("HOME", home, 1);
    return kernel_cache_folder();
  };
  const std::string home = std::getenv("HOME") == nullptr ? "" : std::getenv("HOME");
  EXPECT_EQ(with("/x/y", "/z", "/h"), "/x/y");
  EXPECT_EQ(with("", "/z", "/h"), "/z/flashmask");
  EXPECT_EQ(with("", "", "/h"), "/h/.cache/flashmask");
  EXPECT_EQ(with("", "", ""), "");
  setenv("HOME", home.c_str(), 1);
  unsetenv("FLASHMASK_CACHE");
  unsetenv("XDG_CACHE_HOME");
}

TEST(KernelCache, ListsItsKernelsAndRemovesThem) {
  const Folder folder;
  const Cache cache(folder.cache());
  const Job job{.text = "#include \"a.cuh\"\nnamespace flashmask::cuda {\nstruct Change {\n};\n}\n",
                .kernel = "flashmask::cuda::sm80::column_kernel<Shape<64> >",
                .architecture = "sm_90"};
  Code code = kCode;
  code.made_for = "bias | softcap(3)";
  cache.put(cache_key(job, "13.0, 5 bytes", 17), code);
  { const Cache::Lock lock(cache, "key"); }
  std::ofstream(folder.cache() + "/notes.txt") << "the user's own";
  std::ofstream(folder.cache() + "/damaged.kernel") << "none";
  ASSERT_EQ(cache.list().size(), 1U);
  const CachedKernel found = cache.list()[0];
  EXPECT_EQ(found.name, "sm80::column_kernel");
  EXPECT_EQ(found.shape, "<Shape<64> >");
  EXPECT_EQ(found.architecture, "sm_90");
  EXPECT_EQ(found.compiler, "13.0, 5 bytes");
  EXPECT_EQ(found.change, "bias | softcap(3)");
  EXPECT_EQ(found.code, "struct Change {\n};\n");
  EXPECT_EQ(found.spilled, 8);
  EXPECT_EQ(found.bytes, fs::file_size(found.file));
  EXPECT_NEAR(static_cast<double>(found.made), static_cast<double>(std::time(nullptr)), 60);
  EXPECT_EQ(cache.clear(), 1U);
  EXPECT_EQ(cache.list().size(), 0U);
  EXPECT_EQ(folder.files(), 2) << "files that are not the library's stay";
  EXPECT_EQ(Cache(folder.cache() + "/none", false).list().size(), 0U);
  EXPECT_FALSE(fs::exists(folder.cache() + "/none")) << "to list a folder does not make it";
}

/// Each process says by a file that it compiled.
TEST(KernelCache, TwoProcessesCompileAKernelOnce) {
  const Folder folder;
  const Job job{.text = "text", .kernel = "kernel", .architecture = "sm_80"};
  const auto run = [&] {
    const pid_t child = fork();
    if (child != 0) return child;
    const Code code = code_of(job, Cache(folder.cache()), "13.0", [&](const Job&) {
                        std::ofstream(folder.path() / ("compiled" + std::to_string(getpid()))) << "once";
                        std::this_thread::sleep_for(std::chrono::milliseconds(200));
                        return kCode;
                      }).code;
    _exit(code == kCode ? 0 : 1);
  };
  const pid_t children[2] = {run(), run()};
  for (const pid_t child : children) {
    int status = 1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  int compiled = 0;
  for (const auto& entry : fs::directory_iterator(folder.path()))
    compiled += entry.path().filename().string().starts_with("compiled");
  EXPECT_EQ(compiled, 1);
}

TEST(KernelCache, CompilesAnewForAnotherVersionArchitectureOrText) {
  const Folder folder;
  const Cache cache(folder.cache());
  int compiled = 0;
  const auto ask = [&](const Job& job, const std::string& version) {
    const int before = compiled;
    const FoundCode found = code_of(job, cache, version, [&](const Job&) {
      ++compiled;
      return kCode;
    });
    EXPECT_EQ(found.origin, compiled > before ? KernelOrigin::compiler : KernelOrigin::disk);
    return compiled;
  };
  const Job job{.text = "text", .kernel = "kernel", .architecture = "sm_80"};
  Job other = job;
  EXPECT_EQ(ask(job, "13.0"), 1);
  EXPECT_EQ(ask(job, "13.0"), 1);
  EXPECT_EQ(ask(job, "13.1"), 2);
  other.architecture = "sm_90";
  EXPECT_EQ(ask(other, "13.0"), 3);
  other.text = "other text";
  EXPECT_EQ(ask(other, "13.0"), 4);
}

}  // namespace
}  // namespace flashmask::cuda::compile
