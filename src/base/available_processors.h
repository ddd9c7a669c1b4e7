// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace flashmask {

/// Returns how many processors this process may use: its CPU affinity, limited by the cgroup's quota rounded up. At
/// least 1.
int available_processors();

}  // namespace flashmask
