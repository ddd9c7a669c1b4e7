// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace flashmask {

/// Whether AddressSanitizer watches, which ends a program that asks for more memory than there is.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kAddressSanitizer = true;
#elif defined(__has_feature)
inline constexpr bool kAddressSanitizer = __has_feature(address_sanitizer);
#else
inline constexpr bool kAddressSanitizer = false;
#endif

}  // namespace flashmask
