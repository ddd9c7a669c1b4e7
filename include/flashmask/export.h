// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Marks what the shared library exports; everything else stays hidden.
#if defined(_WIN32)
#if defined(FLASHMASK_BUILDING)
#define FLASHMASK_API __declspec(dllexport)
#elif defined(FLASHMASK_SHARED)
#define FLASHMASK_API __declspec(dllimport)
#else
#define FLASHMASK_API
#endif
#else
#define FLASHMASK_API __attribute__((visibility("default")))
#endif
