#pragma once

namespace flashmask::cpu {

/// How many processors this process may use: the CPU affinity, and the cgroup's quota rounded up. At least 1.
int available_processors();

}  // namespace flashmask::cpu
