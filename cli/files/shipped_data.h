#pragma once

#include <string>

namespace flashmask::cli {

/// The path of a data file of the product: in an installation beside the executable's folder, else in the source
/// tree. Throws Status::io when it is in neither.
std::string shipped_data(const std::string& name);

}  // namespace flashmask::cli
