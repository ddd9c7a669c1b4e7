// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Errors from compiling C++20 code as an older standard do not name the cause: this one does, and comes first.
#if defined(_MSVC_LANG) ? _MSVC_LANG <= 201703L : __cplusplus <= 201703L
#error "FlashMask's C++ library needs C++20: compile with -std=c++20, or use its C ABI, flashmask/c_api.h"
#endif
