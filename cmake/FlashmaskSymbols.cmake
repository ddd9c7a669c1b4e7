# SPDX-License-Identifier: Apache-2.0
# Exports flashmask names only.
if(BUILD_SHARED_LIBS AND CMAKE_SYSTEM_NAME STREQUAL "Linux")
  target_link_options(flashmask PRIVATE LINKER:--version-script=${CMAKE_CURRENT_LIST_DIR}/flashmask.map)
  set_property(TARGET flashmask APPEND PROPERTY LINK_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/flashmask.map)
endif()
