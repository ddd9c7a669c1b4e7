# SPDX-License-Identifier: Apache-2.0
# Exports flashmask names only. A process may hold several libraries, such as that of a program and that of a Python wheel,
# and of several versions: names carry the version, so that each program calls the one that it was linked against, and a
# library's own functions are called without asking which other library has one of that name.
if(BUILD_SHARED_LIBS AND CMAKE_SYSTEM_NAME STREQUAL "Linux")
  set(flashmask_map ${PROJECT_BINARY_DIR}/flashmask.map)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/flashmask.map.in ${flashmask_map} @ONLY)
  target_link_options(flashmask PRIVATE LINKER:--version-script=${flashmask_map} LINKER:-Bsymbolic-functions)
  set_property(TARGET flashmask APPEND PROPERTY LINK_DEPENDS ${flashmask_map})
  # What no object defines fails the build here, and not each program that links the library. Sanitizers leave their
  # runtime to the program.
  if(PROJECT_IS_TOP_LEVEL AND NOT FLASHMASK_SANITIZE AND NOT FLASHMASK_FUZZ)
    target_link_options(flashmask PRIVATE LINKER:-z,defs)
  endif()
endif()
