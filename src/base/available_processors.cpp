// SPDX-License-Identifier: Apache-2.0
#include "base/available_processors.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

namespace flashmask {
namespace {

constexpr double kNoQuota = 1e9;

/// The quota of cgroup v2, a file such as "max 100000" or "200000 100000".
double quota_v2() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return kNoQuota;
  return std::strtod(quota.c_str(), nullptr) / period;
}

double quota_v1() {
  std::ifstream quota_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), period_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  double quota = 0, period = 0;
  if (!(quota_file >> quota) || !(period_file >> period) || quota <= 0 || period <= 0) return kNoQuota;
  return quota / period;
}

}  // namespace

int available_processors() {
  // The standard library's count respects the affinity of the process on Linux.
  const int allowed = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  // Reading files at every call is slow, and a quota seldom changes while a process runs.
  static const double quota = std::ceil(std::min(quota_v2(), quota_v1()));
  return std::max(1, static_cast<int>(std::min<double>(allowed, quota)));
}

}  // namespace flashmask
