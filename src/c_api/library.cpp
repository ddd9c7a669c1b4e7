// SPDX-License-Identifier: Apache-2.0
#include "c_api/guard.h"
#include "flashmask/executor.h"

#define FLASHMASK_TEXT_OF(value) #value
#define FLASHMASK_TEXT(value) FLASHMASK_TEXT_OF(value)

const char* flashmask_version(void) {
  return FLASHMASK_TEXT(FLASHMASK_VERSION_MAJOR) "." FLASHMASK_TEXT(FLASHMASK_VERSION_MINOR) "." FLASHMASK_TEXT(
      FLASHMASK_VERSION_PATCH);
}

flashmask_status flashmask_set_thread_count(int threads) {
  return flashmask::c_api::guard([&] {
    if (threads < 0) {
      throw flashmask::Error(flashmask::Status::invalid_argument,
                             "set_thread_count: threads is " + std::to_string(threads) +
                                 "; give 1 or more, or 0 for the automatic choice");
    }
    flashmask::set_thread_count(threads);
  });
}
