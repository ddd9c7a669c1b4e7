// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

/// Warpgroup matrix products of sm_90a: d (64 × N, float32, in registers) += a (64 × 16) · b (16 × N). All four warps
/// call them together. Warp w, lane l holds rows 16 w + l / 4 and + 8: d[4 j], d[4 j + 1] are columns 8 j + 2 (l % 4)
/// and + 1 of the first row, d[4 j + 2], d[4 j + 3] the same columns of the second.
namespace flashmask::cuda::sm90 {

/// Called before the first product of a batch and after ordinary writes to its registers.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Waits until at most `kPending` committed groups are still running.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving accesses to accumulators across this point.
template <int kCount>
__device__ __forceinline__ void pin(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

/// Describes a tile in shared memory to wgmma: panels with rows of 64 elements (128 bytes), 128-byte swizzle, 1024-byte
/// aligned. `stride` between groups of eight rows is 1024 bytes; `leading`, between panels, matters only where rows are
/// k. The two words are kept apart because a step through a tile only adds to the low one, which is in a uniform
/// register where the compiler can see that the address is the same for all lanes.
class TileDescriptor {
 public:
  __device__ __forceinline__ TileDescriptor(std::uint32_t address, std::uint32_t leading_bytes)
      : low_((leading_bytes >> 4) << 16 | (address & 0x3FFFF) >> 4) {
    // Keeps the compiler from computing the descriptors of all steps before the loop and holding them in registers.
    asm volatile("" : "+r"(low_));
  }

  /// Returns the descriptor of the data `bytes` further on.
  __device__ __forceinline__ std::uint64_t at(std::uint32_t bytes) const {
    constexpr std::uint32_t kSwizzle128 = 1U << 30, kStride = 1024 >> 4;
    std::uint64_t descriptor;
    asm("mov.b64 %0, {%1, %2};" : "=l"(descriptor) : "r"(low_ + (bytes >> 4)), "r"(kSwizzle128 | kStride));
    return descriptor;
  }

 private:
  std::uint32_t low_;
};

/// Products<T, N>::ss(d, a, b): a and b in shared memory, rows of 16 contiguous k; with kTransposed, b has contiguous
/// columns. Products<T, N>::rs(d, a, b): a in registers, the packed accumulators of an earlier product, b in shared
/// memory with contiguous columns.
template <class T, int kColumns>
struct Products;

#define FLASHMASK_D8(i)                                                                                       \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define FLASHMASK_D16(i) FLASHMASK_D8(i), FLASHMASK_D8(i + 8)
#define FLASHMASK_D32(i) FLASHMASK_D8(i), FLASHMASK_D8(i + 8), FLASHMASK_D8(i + 16), FLASHMASK_D8(i + 24)
#define FLASHMASK_R32_0                                                                                    \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27," \
  "%28,%29,%30,%31"
#define FLASHMASK_R16_1 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define FLASHMASK_R32_1                                                                                              \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59," \
  "%60,%61,%62,%63"
#define FLASHMASK_R32_2                                                                                              \
  "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91," \
  "%92,%93,%94,%95"
#define FLASHMASK_R32_3                                                                                             \
  "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118," \
  "%119,%120,%121,%122,%123,%124,%125,%126,%127"

// `registers`: the operand numbers of d; p0 … p5: the operands after them.
#define FLASHMASK_PRODUCTS(T, type, columns, registers, p0, p1, p2, p3, p4, p5, ...)                                 \
  template <>                                                                                                        \
  struct Products<T, columns> {                                                                                      \
    template <int kTransposed = 0>                                                                                   \
    static __device__ __forceinline__ void ss(float (&d)[columns / 2], std::uint64_t a, std::uint64_t b, int add) {  \
      asm volatile("{.reg .pred p; setp.ne.b32 p, " p2 ", 0; wgmma.mma_async.sync.aligned.m64n" #columns             \
                   "k16.f32." type "." type " {" registers "}, " p0 ", " p1 ", p, 1, 1, 0, " p3 ";}"                 \
                   : __VA_ARGS__                                                                                     \
                   : "l"(a), "l"(b), "r"(add), "n"(kTransposed));                                                    \
    }                                                                                                                \
    static __device__ __forceinline__ void rs(float (&d)[columns / 2], const std::uint32_t (&a)[4], std::uint64_t b, \
                                              int add) {                                                             \
      asm volatile("{.reg .pred p; setp.ne.b32 p, " p5 ", 0; wgmma.mma_async.sync.aligned.m64n" #columns             \
                   "k16.f32." type "." type " {" registers "}, {" p0 "," p1 "," p2 "," p3 "}, " p4 ", p, 1, 1, 1;}"  \
                   : __VA_ARGS__                                                                                     \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                                  \
    }                                                                                                                \
  };

#define FLASHMASK_PRODUCTS_OF(T, type)                                                                            \
  FLASHMASK_PRODUCTS(T, type, 64, FLASHMASK_R32_0, "%32", "%33", "%34", "%35", "%36", "%37", FLASHMASK_D32(0))    \
  FLASHMASK_PRODUCTS(T, type, 96, FLASHMASK_R32_0 "," FLASHMASK_R16_1, "%48", "%49", "%50", "%51", "%52", "%53",  \
                     FLASHMASK_D32(0), FLASHMASK_D16(32))                                                         \
  FLASHMASK_PRODUCTS(T, type, 128, FLASHMASK_R32_0 "," FLASHMASK_R32_1, "%64", "%65", "%66", "%67", "%68", "%69", \
                     FLASHMASK_D32(0), FLASHMASK_D32(32))                                                         \
  FLASHMASK_PRODUCTS(T, type, 192, FLASHMASK_R32_0 "," FLASHMASK_R32_1 "," FLASHMASK_R32_2, "%96", "%97", "%98",  \
                     "%99", "%100", "%101", FLASHMASK_D32(0), FLASHMASK_D32(32), FLASHMASK_D32(64))               \
  FLASHMASK_PRODUCTS(T, type, 256, FLASHMASK_R32_0 "," FLASHMASK_R32_1 "," FLASHMASK_R32_2 "," FLASHMASK_R32_3,   \
                     "%128", "%129", "%130", "%131", "%132", "%133", FLASHMASK_D32(0), FLASHMASK_D32(32),         \
                     FLASHMASK_D32(64), FLASHMASK_D32(96))

FLASHMASK_PRODUCTS_OF(__nv_bfloat16, "bf16")
FLASHMASK_PRODUCTS_OF(__half, "f16")

#undef FLASHMASK_PRODUCTS_OF
#undef FLASHMASK_PRODUCTS
#undef FLASHMASK_R32_3
#undef FLASHMASK_R32_2
#undef FLASHMASK_R32_1
#undef FLASHMASK_R32_0
#undef FLASHMASK_R16_1
#undef FLASHMASK_D32
#undef FLASHMASK_D16
#undef FLASHMASK_D8

}  // namespace flashmask::cuda::sm90
