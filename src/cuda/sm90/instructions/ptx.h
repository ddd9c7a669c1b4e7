// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/instructions/arithmetic.cuh"

/// The instructions of sm_90 that C++ has no name for: one short function each, tested one by one in tests/cuda.
namespace flashmask::cuda::sm90 {

// Barriers in shared memory that count arrivals and bytes. A wait names the parity of the phase it waits for.

__device__ __forceinline__ void barrier_init(std::uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

/// Called after barrier_init(), before the copy engine may see the barriers; a __syncthreads() must follow.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

/// Arrives once `read` is there, which was made of the words that loads of shared memory brought. An arrival does not
/// wait for loads that were issued before it: it has let in copies that replaced what they had yet to read
/// (docs/journal/score-features.md). `read` is never the signalling NaN that the arrival compares it with: no
/// arithmetic makes one, and no count is as large.
__device__ __forceinline__ void barrier_arrive_behind(std::uint64_t* barrier, std::uint32_t read) {
  asm volatile(
      "{.reg .pred p;\n"
      "setp.ne.b32 p, %1, 0x7f800001;\n"
      "@p mbarrier.arrive.shared::cta.b64 _, [%0];}" ::"r"(shared_address(barrier)),
      "r"(read)
      : "memory");
}

/// Expects `bytes` that copies will bring before the phase ends, without arriving.
__device__ __forceinline__ void barrier_expect(std::uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

/// Arrives once, and expects `bytes` that copies will bring before the phase ends.
__device__ __forceinline__ void barrier_arrive_expecting(std::uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

/// Expects `bytes` that copies will bring. kArrivesLater: the phase also waits for an arrival, which comes when the
/// thread's warp has written more beside them.
template <bool kArrivesLater>
__device__ __forceinline__ void begin_copies(std::uint64_t* barrier, int bytes) {
  if constexpr (kArrivesLater)
    barrier_expect(barrier, bytes);
  else
    barrier_arrive_expecting(barrier, bytes);
}

__device__ __forceinline__ void barrier_wait(std::uint64_t* barrier, std::uint32_t parity) {
  asm volatile(
      "{.reg .pred p;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra done;\n"
      "bra again;\n"
      "done:}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

/// Waits until `threads` threads, in whole warps, name the same `id` (1 … 15).
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Counts as one of the threads of named_barrier() without waiting.
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Waits like named_barrier(), and returns whether any of the threads passed true.
__device__ __forceinline__ bool named_barrier_any(int id, int threads, bool of_thread) {
  std::uint32_t any;
  asm volatile(
      "{.reg .pred p, q;\n"
      "setp.ne.u32 q, %3, 0;\n"
      "bar.red.or.pred p, %1, %2, q;\n"
      "selp.u32 %0, 1, 0, p;}"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<std::uint32_t>(of_thread))
      : "memory");
  return any != 0;
}

// Copies of boxes between global and shared memory by the copy engine; one thread issues each.

__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

constexpr std::uint64_t kEvictFirst = 0x12F0000000000000;  // as createpolicy.fractional makes it

/// Whether blocks read a piece of global memory again soon. What is read once is the first to leave the L2 cache.
enum class Reads { again, once };

/// Copies the box at (x, y, z, w), innermost first, to `destination` and counts its bytes on the barrier. Elements out
/// of bounds become 0 and count too.
template <Reads kReads = Reads::again>
__device__ __forceinline__ void copy_box(void* destination, const CUtensorMap* map, std::uint64_t* barrier, int x,
                                         int y, int z, int w) {
  if constexpr (kReads == Reads::once) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
        "[%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(destination)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(w), "l"(kEvictFirst)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
        "[%2];" ::"r"(shared_address(destination)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(w)
        : "memory");
  }
}

/// Brings the box at (x, y, z, w), innermost first, into the L2 cache only.
__device__ __forceinline__ void prefetch_box(const CUtensorMap* map, int x, int y, int z, int w) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(x), "r"(y),
               "r"(z), "r"(w)
               : "memory");
}

/// Brings `bytes`, a multiple of 16, of global memory aligned to 16 into the L2 cache only.
__device__ __forceinline__ void prefetch_bytes(const void* source, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(source), "r"(bytes) : "memory");
}

/// Copies `bytes`, a multiple of 16, from global memory aligned to 16 and counts them on the barrier.
__device__ __forceinline__ void copy_bytes(void* destination, const void* source, int bytes, std::uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(destination)),
               "l"(source), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

/// Copies `bytes`, a multiple of 16, from shared memory to global memory, both aligned to 16. Called after
/// fence_stores_for_async().
__device__ __forceinline__ void store_bytes(void* destination, const void* source, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(destination),
               "r"(shared_address(source)), "r"(bytes)
               : "memory");
}

/// Copies a box from shared memory to (x, y, z, w), innermost first. Called after fence_stores_for_async(). Elements
/// out of bounds are left out. What it writes is the first to leave the L2 cache.
__device__ __forceinline__ void store_box(const CUtensorMap* map, const void* source, int x, int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%2, %3, %4, %5}], [%1], %6;" ::"l"(
          map),
      "r"(shared_address(source)), "r"(x), "r"(y), "r"(z), "r"(w), "l"(kEvictFirst)
      : "memory");
}

/// Closes the group of copies that this thread has issued by store_bytes() and store_box().
__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Waits until all groups of this thread are in global memory.
__device__ __forceinline__ void await_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

/// Waits until all groups of this thread but the last `kPending` have been read from shared memory.
template <int kPending = 0>
__device__ __forceinline__ void await_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

/// Called before a barrier after which the copy engine or wgmma reads what this thread stored in shared memory.
__device__ __forceinline__ void fence_stores_for_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Stores four 8 × 8 matrices of 16-bit numbers, each transposed. Thread l holds row l / 4, columns 2 (l % 4) and + 1,
/// of each matrix in one word; its `address` is where row l % 8 of the transpose of matrix l / 8 begins.
__device__ __forceinline__ void store_matrices_transposed(std::uint32_t address, const std::uint32_t (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

/// Stores four matrices like store_matrices_transposed(), but does not transpose them: `address` is where row l % 8 of
/// matrix l / 8 begins.
__device__ __forceinline__ void store_matrices(std::uint32_t address, const std::uint32_t (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

/// Transposes an 8 × 8 matrix of 16-bit numbers: thread l passes row l / 4, columns 2 (l % 4) and + 1, and gets column
/// l / 4, rows 2 (l % 4) and + 1.
__device__ __forceinline__ std::uint32_t transpose_matrix(std::uint32_t word) {
  std::uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(word));
  return transposed;
}

/// Called before the copy engine reads global memory that others have written, as load_acquire() told this thread.
__device__ __forceinline__ void fence_loads_for_async() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

/// Reads a number that other blocks change. What they wrote before they changed it is visible from then on.
__device__ __forceinline__ int load_acquire(const int* address) {
  int value;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

/// Adds to four numbers in global memory, aligned to 16 bytes. Additions of several threads have no fixed order.
__device__ __forceinline__ void add_to_global(float* address, float a, float b, float c, float d) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
}

/// Discards 128 aligned bytes, which spares the L2 cache writing them to memory; they are undefined afterwards.
__device__ __forceinline__ void discard_line(void* address) {
  asm volatile("discard.global.L2 [%0], 128;" ::"l"(address) : "memory");
}

// These set how many registers each thread of this warpgroup may use; the sum over the warpgroups stays what the launch
// gave.

template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace flashmask::cuda::sm90
