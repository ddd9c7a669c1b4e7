// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "flashmask/export.h"
#include "flashmask/problem.h"
#include "flashmask/schedule.h"

/// Kernels that are compiled for changes of scores which no kernel of the library knows: those of a plan, those that
/// are kept on disk, and what a change would take.
namespace flashmask {

/// Where a plan found a kernel.
enum class KernelOrigin : int {
  compiler,  ///< it was compiled
  disk,      ///< an earlier process had compiled it
  memory,    ///< an earlier plan of this process had asked for it
};

FLASHMASK_API std::string to_string(KernelOrigin origin);

/// A kernel that was compiled for a plan.
struct CompiledKernel {
  Direction direction = Direction::forward;
  std::string name;  ///< such as sm80::column_kernel
  KernelOrigin origin = KernelOrigin::compiler;
  double seconds = 0;    ///< until it could be launched: compiling or reading, and loading; 0 from memory
  int spilled = 0;       ///< bytes of registers that a thread keeps in memory
  std::string compiler;  ///< such as "NVRTC 13.0, /usr/local/cuda/lib64/libnvrtc.so.13"
};

/// A kernel in the folder of compiled kernels.
struct CachedKernel {
  std::string name;          ///< such as sm80::column_kernel
  std::string shape;         ///< the rest of its name, as C++ writes it
  std::string architecture;  ///< such as sm_90
  std::string compiler;      ///< such as "13.0, 109338064 bytes": NVRTC's version and size
  std::string change;        ///< the text of the change of scores that asked for it first; others may use it, too
  std::string code;          ///< struct Change, which it was compiled with
  std::string file;          ///< with its path
  std::size_t bytes = 0;     ///< of the file
  std::int64_t made = 0;     ///< when it was written, in seconds since 1970
  int spilled = 0;
};

/// Returns the folder of compiled kernels: FLASHMASK_CACHE, else flashmask in XDG_CACHE_HOME, else ~/.cache/flashmask;
/// "" where none of them is set.
FLASHMASK_API std::string kernel_cache_folder();
/// Says why kernels are not kept in it; "" where they are.
FLASHMASK_API std::string kernel_cache_refusal();
/// Returns what is in it, newest first: nothing where it is not the user's own, and closed to others.
FLASHMASK_API std::vector<CachedKernel> cached_kernels();
/// The folder and cached_kernels() as text, for people.
FLASHMASK_API std::string describe_cached_kernels();
/// Removes all of them, with the locks and parts of files that processes have left. Returns how many kernels there
/// were.
FLASHMASK_API std::size_t clear_cached_kernels();

}  // namespace flashmask
