// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace flashmask::cli {

/// The processor's name as the system tells it, such as "AMD EPYC 9R14"; "unknown" where it does not.
std::string processor();

/// The system and the architecture, such as "Linux x86_64".
std::string system_name();

/// Today in UTC, as 2026-11-25.
std::string today();

}  // namespace flashmask::cli
