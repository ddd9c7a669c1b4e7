// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <xla/ffi/api/c_api.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "c_api/guard.h"

namespace flashmask::jax {

/// One call by XLA. Attributes are found by name; operands and results are taken one after another.
class Frame {
 public:
  explicit Frame(const XLA_FFI_CallFrame& frame) : frame_(frame) {}

  // Attributes; each throws where there is none of this name and type.
  std::int64_t integer(std::string_view name) const;
  bool flag(std::string_view name) const { return integer(name) != 0; }
  double number(std::string_view name) const;
  std::string_view text(std::string_view name) const;
  std::span<const std::int32_t> integers(std::string_view name) const;

  const XLA_FFI_Buffer& next_operand();
  const XLA_FFI_Buffer& next_result();

  const XLA_FFI_Api& api() const { return *frame_.api; }
  XLA_FFI_ExecutionContext* context() const { return frame_.ctx; }

 private:
  const void* attribute(std::string_view name, XLA_FFI_AttrType type) const;
  const void* scalar(std::string_view name, XLA_FFI_DataType type) const;

  const XLA_FFI_CallFrame& frame_;
  std::int64_t operand_ = 0, result_ = 0;
};

/// Whether a function of XLA succeeded; destroys the error that it returned otherwise.
bool succeeded(const XLA_FFI_Api& api, XLA_FFI_Error* error);

/// Throws the error that a function of XLA returned, unless it succeeded.
void check(const XLA_FFI_Api& api, XLA_FFI_Error* error);

/// Answers XLA's question for a handler's version; false where the frame asks for something else.
bool tells_version(const XLA_FFI_CallFrame& frame);

/// XLA's error for a status and the message of this thread's last failure; nullptr for success.
XLA_FFI_Error* to_xla(const XLA_FFI_Api& api, flashmask_status status);

/// Handles a frame of XLA: calls body(Frame&), and returns what it throws as XLA's error.
template <typename Body>
XLA_FFI_Error* handle(const XLA_FFI_CallFrame* frame, Body&& body) {
  if (tells_version(*frame)) return nullptr;
  return to_xla(*frame->api, c_api::guard([&] {
    Frame call(*frame);
    std::forward<Body>(body)(call);
  }));
}

}  // namespace flashmask::jax
