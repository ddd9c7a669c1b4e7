# SPDX-License-Identifier: Apache-2.0
# cmake -D INCLUDE=… -P plain_headers.cmake
# Public headers include the standard library and each other, nothing else: no CUDA, Torch or intrinsics.
cmake_minimum_required(VERSION 3.22)

file(GLOB headers ${INCLUDE}/flashmask/*.h)
foreach(header IN LISTS headers)
  file(STRINGS ${header} lines REGEX "^#include")
  foreach(line IN LISTS lines)
    if(NOT line MATCHES "^#include (<[a-z_]+>|<std(def|int)\\.h>|\"flashmask/[a-z_]+\\.h\")$")
      message(SEND_ERROR "${header}: ${line}")
    endif()
  endforeach()
endforeach()
