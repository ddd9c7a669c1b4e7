// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/version.h"

#include "flashmask/version.h"

namespace flashmask::cli {

std::string version() {
  return std::to_string(FLASHMASK_VERSION_MAJOR) + "." + std::to_string(FLASHMASK_VERSION_MINOR) + "." +
         std::to_string(FLASHMASK_VERSION_PATCH);
}

std::string build() { return FLASHMASK_BUILD; }

}  // namespace flashmask::cli
