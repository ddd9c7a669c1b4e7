// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "flashmask/error.h"

namespace flashmask {

/// The message of the Error that `call` throws.
inline std::string refusal(const std::function<void()>& call, Status expected = Status::invalid_argument) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), expected) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

}  // namespace flashmask
