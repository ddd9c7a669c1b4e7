// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Semantic version. CMake reads these three lines, so that they are the only place to change.
#define FLASHMASK_VERSION_MAJOR 0
#define FLASHMASK_VERSION_MINOR 1
#define FLASHMASK_VERSION_PATCH 0
