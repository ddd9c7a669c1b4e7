// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace flashmask::cli {

/// The path of a data file that ships with the product, beside the executable's folder both in an installation and in a
/// build tree. Throws Status::io when it is not there.
std::string shipped_data(const std::string& name);

}  // namespace flashmask::cli
