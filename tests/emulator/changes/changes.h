// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The changes whose texts the emulator's kernels are compiled with.
namespace flashmask::test {

inline constexpr const char* kEmulatedChanges[] = {
    "softcap(3) | multiply(-2) | softcap(5)",
    "alibi | softcap(2)",
    "bias | softcap(2)",
    "distance | multiply(0.5)",
    "function(where(lt(at(0, q), at(0, k)), mul(score, at(1, b, h)), mul(score, 0.5)))",
    "function(add(mul(score, add(1, mul(0.1, cos(sub(q, k))))), mul(at(1, h, q, k), at(0, b))))",
    "function(mul(mul(score, score), bias))",
    "function(add(add(score, distance), div(score, abs(score))))",
    "function(mul(mul(score, score), at(0, k)))",
};

}  // namespace flashmask::test
