// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace flashmask::cli {

/// "0.1.0".
std::string version();

/// The compiler and the build type, such as "g++ 12.2.0, Release".
std::string build();

}  // namespace flashmask::cli
