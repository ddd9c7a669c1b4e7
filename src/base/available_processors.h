// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace flashmask {

/// How many processors this process may use: the CPU affinity, and the cgroup's quota rounded up. At least 1.
int available_processors();

}  // namespace flashmask
