// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include "flashmask/c_api.h"
#include "flashmask/error.h"

namespace flashmask::c_api {

/// Keeps the message for flashmask_last_error() of this thread and returns the status.
flashmask_status fail(Status status, const char* message) noexcept;

/// Runs `body` and turns any exception into a status: the only place where exceptions meet the C ABI.
template <typename Body>
flashmask_status guard(Body&& body) noexcept {
  try {
    body();
    return FLASHMASK_OK;
  } catch (const Error& error) {
    return fail(error.status(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(Status::out_of_memory, "out of memory; use smaller sizes or free memory");
  } catch (const std::length_error&) {
    return fail(Status::out_of_memory, "a size is larger than any memory; use smaller sizes");
  } catch (const std::exception& error) {
    return fail(Status::internal, error.what());
  } catch (...) {
    return fail(Status::internal, "an exception of unknown type left the library or a callback");
  }
}

/// A pointer argument that must not be NULL.
template <typename T>
T& require(T* pointer, const char* name) {
  if (pointer == nullptr) {
    throw Error(Status::invalid_argument, std::string(name) + " is NULL; pass a valid pointer");
  }
  return *pointer;
}

}  // namespace flashmask::c_api
