// SPDX-License-Identifier: Apache-2.0
#include "cli/base/machine.h"

#include <sys/utsname.h>

#include <chrono>
#include <ctime>
#include <fstream>

namespace flashmask::cli {

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const std::size_t value = line.find(": ");
    if (value != std::string::npos) return line.substr(value + 2);
  }
  return "unknown";
}

std::string system_name() {
  utsname name{};
  if (uname(&name) != 0) return "unknown";
  return std::string(name.sysname) + " " + name.machine;
}

std::string today() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[sizeof "2026-11-25"];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d", &utc)};
}

}  // namespace flashmask::cli
