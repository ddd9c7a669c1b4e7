// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

#include "flashmask/export.h"
#include "flashmask/language_standard.h"

namespace flashmask {

/// Why a call was refused. The values are those of `flashmask_status` in c_api.h.
enum class Status : int {
  ok = 0,
  invalid_argument = 1,  ///< a size, dtype, stride, ratio or value that the call does not accept
  unsupported = 2,       ///< a legal request that no kernel or form of this build serves
  out_of_memory = 3,
  io = 4,  ///< a file that cannot be read or written
  internal = 5,
};

/// The only exception type of the library. `what()` says what was given, what was expected and what to do. Where memory
/// that grows with the sizes of a call cannot be allocated, Status::out_of_memory says how many bytes were wanted.
/// Where even a small allocation fails, std::bad_alloc is thrown, as by any code of the standard library.
class FLASHMASK_API Error : public std::runtime_error {
 public:
  Error(Status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  Status status() const noexcept { return status_; }

 private:
  Status status_;
};

}  // namespace flashmask
