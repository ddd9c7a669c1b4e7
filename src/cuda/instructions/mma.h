// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/instructions/arithmetic.cuh"

/// The instructions of sm_80 that C++ has no name for: one short function each, tested one by one in tests/cuda. The
/// emulator (tests/emulator) has the same functions for a CPU, so kernels name no instruction themselves.
///
/// Fragments of a warp, lane l = 4 g + q:
///
///   a  16 × 16  word 0: row g, columns 2 q and 2 q + 1; word 1: row g + 8, the same columns;
///               words 2 and 3: the same rows, 8 columns further on
///   b  16 × 8   word 0: column g, rows 2 q and 2 q + 1; word 1: column g, 8 rows further on
///   d  16 × 8   numbers 0 and 1: row g, columns 2 q and 2 q + 1; numbers 2 and 3: row g + 8, the same columns
namespace flashmask::cuda {

/// Computes d += a b with sums in float32.
template <class T>
__device__ __forceinline__ void multiply(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                         std::uint32_t b1);

template <>
__device__ __forceinline__ void multiply<__nv_bfloat16>(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                                        std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void multiply<__half>(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                                 std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Computes d = a b where it is the `first` product of a sum, which then need not start from zeros; else d += a b.
template <class T>
__device__ __forceinline__ void multiply(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                                         bool first);

template <>
__device__ __forceinline__ void multiply<__nv_bfloat16>(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                                        std::uint32_t b1, bool first) {
  if (!first) return multiply<__nv_bfloat16>(d, a, b0, b1);
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %10, %10, %10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0F));
}

template <>
__device__ __forceinline__ void multiply<__half>(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                                 std::uint32_t b1, bool first) {
  if (!first) return multiply<__half>(d, a, b0, b1);
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %10, %10, %10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0F));
}

/// Loads four 8 × 8 matrices of 16-bit numbers. `address`: where row l % 8 of matrix l / 8 begins, a multiple of 16.
/// Lane 4 g + q receives row g, columns 2 q and 2 q + 1 of each matrix.
__device__ __forceinline__ void load_matrices(std::uint32_t (&words)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

/// Loads four matrices and transposes each: lane 4 g + q receives column g, rows 2 q and 2 q + 1.
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&words)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

/// Loads 16 bytes of global memory that no kernel writes, aligned to 16; zeros where `exists` is false, when they are
/// not read.
__device__ __forceinline__ void load_16(std::uint32_t (&words)[4], const void* from, bool exists) {
  asm("{\n"
      ".reg .pred exists;\n"
      "setp.ne.u32 exists, %5, 0;\n"
      "mov.b32 %0, 0;\n"
      "mov.b32 %1, 0;\n"
      "mov.b32 %2, 0;\n"
      "mov.b32 %3, 0;\n"
      "@exists ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];\n"
      "}"
      : "=&r"(words[0]), "=&r"(words[1]), "=&r"(words[2]), "=&r"(words[3])
      : "l"(from), "r"(static_cast<unsigned>(exists)));
}

/// Transposes an 8 × 8 matrix of 16-bit numbers: lane 4 g + q gives row g, columns 2 q and 2 q + 1, and receives column
/// g, rows 2 q and 2 q + 1.
__device__ __forceinline__ std::uint32_t transpose_matrix(std::uint32_t word) {
  std::uint32_t transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(word));
  return transposed;
}

// Asynchronous copies from global to shared memory: a thread issues them and waits for them later, in groups. Other
// threads see the data after a barrier that follows the wait.

/// Copies 16 bytes, aligned to 16; writes zeros where `exists` is false, when the source is not read.
__device__ __forceinline__ void copy_16(std::uint32_t to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}

/// Copies 8 bytes, aligned to 8.
__device__ __forceinline__ void copy_8(std::uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}

/// Copies 4 bytes, aligned to 4.
__device__ __forceinline__ void copy_4(std::uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

/// Closes a group of copies, which may be empty.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until all but the last kPending of the thread's groups have arrived.
template <int kPending>
__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Synchronizes some of the block's warps, `threads` threads in all; barrier 0 is that of __syncthreads().
__device__ __forceinline__ void sync_threads(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// Adds x to a number in global memory. Additions by several threads have no fixed order.
__device__ __forceinline__ void add_to_global(float* address, float x) {
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(address), "f"(x) : "memory");
}

/// Adds to four numbers, aligned to 16 bytes: in one instruction from sm_90 on.
__device__ __forceinline__ void add_to_global(float* address, float a, float b, float c, float d) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
#else
  add_to_global(address, a);
  add_to_global(address + 1, b);
  add_to_global(address + 2, c);
  add_to_global(address + 3, d);
#endif
}

}  // namespace flashmask::cuda
