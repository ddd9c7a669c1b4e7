// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Changes that are functions, of every operation: what FlexAttention's users write, and more.
namespace flashmask::test {

inline constexpr const char* kScoreFunctions[] = {
    "function(mul(score, score))",
    "function(mul(score, add(1, mul(0.1, cos(sub(q, k))))))",
    "function($0 = tanh(mul(0.5, score)); mul(score, add(0.5, mul(0.5, $0))))",
    "function(sub(score, mul(at(0, h), abs(sub(q, k)))))",
    "softcap(20) | function(sub(score, mul(at(0, h), abs(sub(q, k)))))",
    "function(where(eq(at(0, q), at(0, k)), score, sub(score, 10)))",
    "function(add(score, at(0, b, h, q, k)))",
    "function(add(score, at(0, h, add(sub(q, k), 6))))",
    "function($0 = sub(k, q); $1 = floor(div($0, 2)); "
    "where(eq(sub($0, mul(2, $1)), 0), mul(score, 0.5), where(lt(q, k), mul(score, 2), score)))",
    "function($0 = sub(k, q); $1 = abs($0); $2 = add(8, floor(mul(2.885, log(div(max($1, 1), 8))))); "
    "add(score, at(0, add(where(lt($1, 8), $1, min($2, 15)), where(lt(0, $0), 16, 0)), h)))",
    "function(where(lt(0, score), log(add(1, exp(score))), mul(0.25, score)))",
    "function(div(score, sqrt(add(1, mul(0.01, mul(score, score))))))",
    "function(add(mul(-2, score), mul(max(score, 1), sin(q))))",
    "function(mul(score, add(1, div(b, add(1, k)))))",
    "function(where(and(le(k, q), not(eq(h, 1))), score, -inf))",
    "function(where(or(lt(k, q), lt(score, 0)), neg(score), min(score, 3)))",
    "function(add(score, floor(at(0, at(1, q), k))))",
    "function(add(mul(score, bias), exp(mul(-0.5, abs(score)))))",
    "bias | softcap(3) | function(mul(score, 1.5))",
    "function(mul(score, distance))",
    "function(mul(mul(0.5, score), add(1, erf(mul(score, 0.7071)))))",
    "multiply(2) | function(tanh(score)) | multiply(3)",
};

}  // namespace flashmask::test
