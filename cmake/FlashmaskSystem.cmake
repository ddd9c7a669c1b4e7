# SPDX-License-Identifier: Apache-2.0
# Says on other systems than Linux, before anything is compiled, what to expect there.
if(CMAKE_SYSTEM_NAME STREQUAL "Windows")
  message(FATAL_ERROR "flashmask is for Linux, and this is Windows: build it in WSL 2 or in a Linux container")
elseif(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  message(WARNING "flashmask is for Linux, and this is ${CMAKE_SYSTEM_NAME}: nobody has built or tested it here. A Linux "
                  "container or virtual machine is the way that works")
endif()
