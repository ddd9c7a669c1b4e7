// SPDX-License-Identifier: Apache-2.0
#include "cli/base/memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "cli/base/quantities.h"
#include "flashmask/error.h"

namespace flashmask::cli {

double memory_limit() {
  double limit = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    double group = 0;
    if (std::ifstream(path) >> group) limit = std::min(limit, group);  // "max" is no number: no limit
  }
  return limit;
}

void check_memory(double bytes_needed, const std::string& what, const std::string& remedy) {
  const double limit = memory_limit();
  if (bytes_needed <= limit) return;
  throw Error(Status::out_of_memory,
              what + " needs " + bytes(bytes_needed) + " of memory; there are " + bytes(limit) + "; " + remedy);
}

}  // namespace flashmask::cli
