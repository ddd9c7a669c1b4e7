// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace flashmask::cli {

/// The path of a data file of the product: beside the executable's folder, in an installation as in a build tree.
/// Throws Status::io when it is not there.
std::string shipped_data(const std::string& name);

}  // namespace flashmask::cli
