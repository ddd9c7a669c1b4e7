// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

/// NVIDIA's compiler of CUDA at run time, which is loaded where it is installed.
namespace flashmask::cuda::compile {

/// One kernel to compile.
struct Job {
  std::string text;           ///< of the file, which includes some of sources()
  std::string kernel;         ///< the expression that names the kernel there, such as f<int>
  std::string architecture;   ///< such as sm_80
  std::string made_for = {};  ///< the change of scores that asks for it, for people; not what it is known by
};

/// Machine code with one kernel.
struct Code {
  std::string cubin;
  std::string kernel;  ///< the kernel's name in it
  int spilled = 0;  ///< bytes of registers that it stores in memory, a thread; at least kSerialized where products of
                    ///< tiles (wgmma) run one after the other
  std::string made_for = {};  ///< the job's

  static constexpr int kSerialized = 1 << 20;

  friend bool operator==(const Code&, const Code&) = default;
};

/// Where nvrtc() looks, first to last: FLASHMASK_NVRTC alone where it is set, a file or a folder; what the process has
/// loaded; beside CUDA's libraries that it has loaded, and in NVIDIA's wheels beside those; the loader's path; CUDA's
/// own folder.
std::vector<std::string> nvrtc_places();

class Nvrtc {
 public:
  /// Loads the first of these files that is version 12.5 or newer. Throws Status::unsupported where there is none.
  explicit Nvrtc(const std::vector<std::string>& places);

  /// Such as "13.0, 109338064 bytes", which differs where code may differ.
  const std::string& version() const { return version_; }
  /// Such as "NVRTC 13.0, /usr/local/cuda/lib64/libnvrtc.so.13".
  std::string name() const { return "NVRTC " + version_.substr(0, version_.find(',')) + ", " + file_; }

  /// Throws Status::internal with what the compiler says.
  Code compile(const Job& job) const;

 private:
  struct Functions;
  bool load(const std::string& file);

  const Functions* functions_ = nullptr;  // never freed, nor is the library: threads may compile while a process ends
  std::string version_, file_;
};

/// Returns the process's compiler, which is looked for once it is first asked for. Throws as Nvrtc() does.
const Nvrtc& nvrtc();

/// Says why nvrtc() would throw; empty if it would not.
std::string nvrtc_refusal();

}  // namespace flashmask::cuda::compile
