# SPDX-License-Identifier: Apache-2.0
# ThreadSanitizer would spend most of the tests' time on the two dense computations that kernels are held against.
# They share nothing between threads, so their accesses need not be watched.
if(FLASHMASK_SANITIZE STREQUAL "thread" AND TARGET flashmask_kit)
  set_property(SOURCE ${PROJECT_SOURCE_DIR}/src/reference/reference.cpp TARGET_DIRECTORY flashmask_objects
               APPEND PROPERTY COMPILE_OPTIONS -fno-sanitize=thread)
  set_property(SOURCE ${PROJECT_SOURCE_DIR}/kit/naive_attention.cpp TARGET_DIRECTORY flashmask_kit
               APPEND PROPERTY COMPILE_OPTIONS -fno-sanitize=thread)
endif()
