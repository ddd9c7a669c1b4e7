// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What compilers say of C++20 code in an older standard names no reason: this does, before any of it.
#if defined(_MSVC_LANG) ? _MSVC_LANG <= 201703L : __cplusplus <= 201703L
#error "FlashMask's C++ library needs C++20: compile with -std=c++20, or use its C ABI, flashmask/c_api.h"
#endif
