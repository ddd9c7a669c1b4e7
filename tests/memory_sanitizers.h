// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace flashmask {

/// Whether a sanitizer with an allocator of its own watches, AddressSanitizer or ThreadSanitizer: both end a program
/// that asks for more memory than there is.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitizerAllocates = true;
#elif defined(__has_feature)
inline constexpr bool kSanitizerAllocates = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool kSanitizerAllocates = false;
#endif

}  // namespace flashmask
