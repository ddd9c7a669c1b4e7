// SPDX-License-Identifier: Apache-2.0
#include "source_folder.h"

namespace flashmask::test {

std::string source_folder() { return FLASHMASK_SOURCE_DIR; }

}  // namespace flashmask::test
