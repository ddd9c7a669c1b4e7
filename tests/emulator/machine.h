// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

/// A GPU's multiprocessor on one thread of a CPU. Every thread of a block is a fiber. The lanes of a warp run until all
/// have arrived where they do something together; a warp runs until it waits at the block's barrier, then another one
/// does, drawn at random; where warps have roles, one of each block runs only when no other can. Copies between global
/// and shared memory happen when they are asked for or as late as the thread waits for them, and until then their place
/// holds NaN: so a missing wait or barrier shows in results. The same holds for what Hopper's copy engine and its
/// products do. What hangs, or diverges where it must not, throws. Not known are proxies (fence.proxy.async) and the
/// memory model.
namespace flashmask::emulator {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
extern Index threadIdx, blockIdx, gridDim;

/// When copies happen that nobody has waited for yet.
enum class Copies { early, late, either };

struct Launch {
  unsigned blocks = 1, threads = 128;
  std::size_t shared_bytes = 0;
  Copies copies = Copies::either;
  unsigned seed = 1;
  /// Where copies may read, if anything is said: [begin, end) each.
  std::vector<std::array<const std::byte*, 2>> readable = {};
  unsigned blocks_y = 1, blocks_z = 1;
};

/// Runs all blocks, one after the other. Throws std::runtime_error where real threads would hang, or read or write
/// where there is nothing.
void run(const Launch& launch, const std::function<void()>& kernel);

// For the stand-ins of the device's headers.

/// All threads of the block.
void await_block();
/// So many of them, at a barrier of a number from 1 to 15.
void await_threads(unsigned barrier, unsigned threads);
/// Counts as one of them without waiting.
void arrive_at_threads(unsigned barrier, unsigned threads);
/// Waits for them, and returns whether any gave true.
bool any_of_threads(unsigned barrier, unsigned threads, bool own);
/// Lets other threads run.
void yield();

/// Hopper's barriers in shared memory: so many arrivals, and bytes that copies bring, complete a phase.
void init_counter(std::uint32_t address, int arrivals);
void arrive_at_counter(std::uint32_t address, int bytes);
void expect_at_counter(std::uint32_t address, int bytes);
void await_counter(std::uint32_t address, std::uint32_t parity);

/// Work of the copy engine: done now, or at any time later. It brings `bytes` to a counter.
void copy_later(const std::function<void()>& work, std::uint32_t counter, int bytes);
/// What the thread asks for in groups, and waits for: stores of the copy engine, and products.
enum class Asked { stores, products };
void ask(Asked kind, std::function<void()> work);
void commit(Asked kind);
void await_asked(Asked kind, int pending);
/// Throws where real threads would, and says why.
[[noreturn]] void refuse(const std::string& why);

/// Shared memory of the block, which a thread may ask for.
void* shared_memory(std::size_t bytes);
std::uint32_t shared_address(const void* pointer);
void read_shared(void* to, std::uint32_t address, std::size_t bytes);
void write_shared(std::uint32_t address, const void* from, std::size_t bytes);

/// source = nullptr: zeros.
void copy(std::uint32_t to, const void* source, std::size_t bytes);
void commit_copies();
void await_copies(int pending);

/// The warp's lanes meet: `own` of this one lies at `address`. True for the lane that arrives last: it acts for all,
/// then calls release_warp(). The others return when it has. `what` tells operations apart.
bool meet(void* own, const void* what, std::array<void*, 32>*& all);
void release_warp();

/// Lets one lane do for all what an instruction does: body(std::array<Operands, 32>&) changes them in place.
template <class Operands, class Body>
Operands together(Operands own, const Body& body) {
  static const char kOperation = 0;
  std::array<void*, 32>* all = nullptr;
  if (meet(&own, &kOperation, all)) {
    std::array<Operands, 32> operands;
    for (std::size_t lane = 0; lane < 32; ++lane) operands[lane] = *static_cast<Operands*>((*all)[lane]);
    body(operands);
    for (std::size_t lane = 0; lane < 32; ++lane) *static_cast<Operands*>((*all)[lane]) = operands[lane];
    release_warp();
  }
  return own;
}

/// Each lane gives a value and gets result(its number, std::array of all values).
template <class T, class Result>
auto exchange(T value, const Result& result) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  struct Given {
    T value;
    std::array<T, 32> all;
  };
  const Given given = together(Given{value, {}}, [](std::array<Given, 32>& lanes) {
    std::array<T, 32> values;
    for (std::size_t i = 0; i < 32; ++i) values[i] = lanes[i].value;
    for (Given& of_lane : lanes) of_lane.all = values;
  });
  return result(lane, given.all);
}

}  // namespace flashmask::emulator
