// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace flashmask::test {

/// The root of the repository: of the paths in its tests only this one is compiled in, and only into one file, so that
/// a compiler's cache serves every clone.
std::string source_folder();

}  // namespace flashmask::test
