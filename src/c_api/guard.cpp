// SPDX-License-Identifier: Apache-2.0
#include "c_api/guard.h"

#include <array>
#include <cstdio>

namespace flashmask::c_api {
namespace {

// A fixed size, so that keeping a message cannot itself run out of memory.
thread_local std::array<char, 1024> last_error{};

}  // namespace

flashmask_status fail(Status status, const char* message) noexcept {
  std::snprintf(last_error.data(), last_error.size(), "%s", message);
  return static_cast<flashmask_status>(status);
}

}  // namespace flashmask::c_api

const char* flashmask_last_error(void) { return flashmask::c_api::last_error.data(); }
