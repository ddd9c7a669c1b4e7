// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <mutex>

namespace flashmask {

/// The first exception of a parallel run.
class FirstError {
 public:
  void capture() {
    const std::scoped_lock lock(mutex_);
    if (!error_) error_ = std::current_exception();
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace flashmask
