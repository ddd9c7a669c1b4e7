// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "emulator/cuda_runtime_api.h"
#include "emulator/machine.h"

namespace flashmask::emulator {

/// Stands in for LinearLauncher.
class EmulatedLauncher {
 public:
  explicit EmulatedLauncher(Copies copies, unsigned seed = 1) : copies_(copies), seed_(seed) {}

  void* allocate(std::size_t bytes) {
    memory_.push_back(std::make_unique<uint4[]>(bytes / sizeof(uint4) + 1));
    std::memset(memory_.back().get(), 0xff, bytes);  // NaN
    return memory_.back().get();
  }

  std::size_t mark() const { return memory_.size(); }
  void rewind(std::size_t mark) { memory_.resize(mark); }

  static bool counts() { return false; }

  template <class Memory, class Arguments>
  void launch(const char*, void (*kernel)(Arguments), std::int64_t blocks, int threads,
              const Arguments& arguments) const {
    const emulator::Launch launch{.blocks = static_cast<unsigned>(blocks),
                                  .threads = static_cast<unsigned>(threads),
                                  .shared_bytes = sizeof(Memory),
                                  .copies = copies_,
                                  .seed = seed_};
    emulator::run(launch, [&] { kernel(arguments); });
  }

 private:
  Copies copies_;
  unsigned seed_;
  std::vector<std::unique_ptr<uint4[]>> memory_;
};

}  // namespace flashmask::emulator
