// SPDX-License-Identifier: Apache-2.0
#include "jax/frame.h"

#include <algorithm>
#include <string>

#include "flashmask/error.h"

namespace flashmask::jax {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(Status::internal, "jax: " + what + "; the Python package and the library are of different versions: " +
                                    "install flashmask anew, and export anew what was exported");
}

const XLA_FFI_Buffer& buffer(void* const* all, std::int64_t count, std::int64_t index, const char* kind) {
  if (index >= count) refuse("the call has " + std::to_string(count) + " " + kind + " and more were expected");
  return *static_cast<const XLA_FFI_Buffer*>(all[index]);
}

XLA_FFI_Error_Code code_of(flashmask_status status) {
  switch (status) {
    case FLASHMASK_INVALID_ARGUMENT:
      return XLA_FFI_Error_Code_INVALID_ARGUMENT;
    case FLASHMASK_UNSUPPORTED:
      return XLA_FFI_Error_Code_UNIMPLEMENTED;
    case FLASHMASK_OUT_OF_MEMORY:
      return XLA_FFI_Error_Code_RESOURCE_EXHAUSTED;
    default:
      return XLA_FFI_Error_Code_INTERNAL;
  }
}

}  // namespace

/// Returns an attribute of a type, or throws.
const void* Frame::attribute(std::string_view name, XLA_FFI_AttrType type) const {
  const XLA_FFI_Attrs& all = frame_.attrs;
  for (std::int64_t i = 0; i < all.size; ++i)
    if (std::string_view(all.names[i]->ptr, all.names[i]->len) == name && all.types[i] == type) return all.attrs[i];
  refuse("the attribute " + std::string(name) + " is missing or of another type");
}

const void* Frame::scalar(std::string_view name, XLA_FFI_DataType type) const {
  const auto* const value = static_cast<const XLA_FFI_Scalar*>(attribute(name, XLA_FFI_AttrType_SCALAR));
  if (value->dtype != type) refuse("the attribute " + std::string(name) + " is of another type");
  return value->value;
}

std::int64_t Frame::integer(std::string_view name) const {
  return *static_cast<const std::int64_t*>(scalar(name, XLA_FFI_DataType_S64));
}

double Frame::number(std::string_view name) const {
  return *static_cast<const double*>(scalar(name, XLA_FFI_DataType_F64));
}

std::string_view Frame::text(std::string_view name) const {
  const auto* const value = static_cast<const XLA_FFI_ByteSpan*>(attribute(name, XLA_FFI_AttrType_STRING));
  return {value->ptr, value->len};
}

std::span<const std::int32_t> Frame::integers(std::string_view name) const {
  const auto* const value = static_cast<const XLA_FFI_Array*>(attribute(name, XLA_FFI_AttrType_ARRAY));
  if (value->dtype != XLA_FFI_DataType_S32) refuse("the attribute " + std::string(name) + " is of another type");
  return {static_cast<const std::int32_t*>(value->data), value->size};
}

const XLA_FFI_Buffer& Frame::next_operand() {
  return buffer(frame_.args.args, frame_.args.size, operand_++, "operands");
}

const XLA_FFI_Buffer& Frame::next_result() { return buffer(frame_.rets.rets, frame_.rets.size, result_++, "results"); }

bool succeeded(const XLA_FFI_Api& api, XLA_FFI_Error* error) {
  if (error == nullptr) return true;
  XLA_FFI_Error_Destroy_Args destroyed{XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
  api.XLA_FFI_Error_Destroy(&destroyed);
  return false;
}

void check(const XLA_FFI_Api& api, XLA_FFI_Error* error) {
  if (error == nullptr) return;
  XLA_FFI_Error_GetMessage_Args asked{XLA_FFI_Error_GetMessage_Args_STRUCT_SIZE, nullptr, error, nullptr};
  api.XLA_FFI_Error_GetMessage(&asked);
  const std::string message = asked.message == nullptr ? "XLA gave no reason" : asked.message;
  succeeded(api, error);
  throw Error(Status::internal, "jax: " + message);
}

bool tells_version(const XLA_FFI_CallFrame& frame) {
  for (auto* each = frame.extension_start; each != nullptr; each = each->next) {
    if (each->type != XLA_FFI_Extension_Metadata) continue;
    XLA_FFI_Metadata& metadata = *reinterpret_cast<XLA_FFI_Metadata_Extension*>(each)->metadata;
    metadata.api_version.major_version = XLA_FFI_API_MAJOR;
    metadata.api_version.minor_version = XLA_FFI_API_MINOR;
    metadata.traits = 0;
    return true;
  }
  return false;
}

XLA_FFI_Error* to_xla(const XLA_FFI_Api& api, flashmask_status status) {
  if (status == FLASHMASK_OK) return nullptr;
  XLA_FFI_Error_Create_Args made{XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, flashmask_last_error(),
                                 code_of(status)};
  return api.XLA_FFI_Error_Create(&made);
}

}  // namespace flashmask::jax
