# SPDX-License-Identifier: Apache-2.0
# What the Python wheel holds beside the sources of python/flashmask: the library, under a plain name. It brings the C++
# runtime along, so that a wheel built on one Linux runs on another with an older one. What finds the way of exceptions,
# libgcc, is on every system and no newer than needed.
if(NOT BUILD_SHARED_LIBS)
  message(FATAL_ERROR "FLASHMASK_PYTHON needs a shared library; set BUILD_SHARED_LIBS=ON")
endif()
if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
  target_link_options(flashmask PRIVATE -static-libstdc++)
endif()
install(FILES $<TARGET_FILE:flashmask> DESTINATION flashmask COMPONENT python
        RENAME libflashmask${CMAKE_SHARED_LIBRARY_SUFFIX})
