# SPDX-License-Identifier: Apache-2.0
# cmake -D PACKAGING=… -D VERSION=… -D SOVERSION=… -P package_versions.cmake
# The recipes in packaging/ are of the version that version.h says.
cmake_minimum_required(VERSION 3.22)

foreach(recipe IN ITEMS "vcpkg/flashmask/vcpkg.json|\"version\": \"${VERSION}\"" "conda/meta.yaml|set version = \"${VERSION}\""
                        "conda/meta.yaml|libflashmask.so.${SOVERSION}\n")
  string(REPLACE "|" ";" recipe "${recipe}")
  list(POP_FRONT recipe path)
  file(READ ${PACKAGING}/${path} text)
  string(FIND "${text}" "${recipe}" position)
  if(position EQUAL -1)
    message(SEND_ERROR "${path} lacks: ${recipe}")
  endif()
endforeach()
