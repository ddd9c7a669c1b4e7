# SPDX-License-Identifier: Apache-2.0
# find_package(flashmask CONFIG) and pkg-config. The command installs itself, in cli/. Components, for distributions that
# put them into packages of their own: flashmask_runtime (the shared library), flashmask_development (headers and what
# build systems read) and flashmask_command.
include(CMakePackageConfigHelpers)

install(TARGETS flashmask EXPORT flashmaskTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT flashmask_runtime NAMELINK_COMPONENT flashmask_development
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT flashmask_development
        RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT flashmask_runtime
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/flashmask DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT flashmask_development)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT flashmask_runtime)

# What a program links beside a static library.
set(flashmask_is_static ON)
if(BUILD_SHARED_LIBS)
  set(flashmask_is_static OFF)
endif()
set(flashmask_private_libraries "-pthread -lstdc++ -lm")
if(FLASHMASK_CUDA AND flashmask_is_static)
  string(PREPEND flashmask_private_libraries "-L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt ")
endif()

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/flashmask)
install(EXPORT flashmaskTargets NAMESPACE flashmask:: DESTINATION ${config_dir} COMPONENT flashmask_development)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/flashmaskConfig.cmake.in flashmaskConfig.cmake
                              INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(flashmaskConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/flashmaskConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/flashmaskConfigVersion.cmake
        DESTINATION ${config_dir} COMPONENT flashmask_development)

# Relative to the .pc file itself, so that an installed tree can be moved; folders that were given as absolute stay so.
file(RELATIVE_PATH prefix_from_pkgconfig ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
set(prefix_of_pkgconfig "\${prefix}")
cmake_path(APPEND prefix_of_pkgconfig ${CMAKE_INSTALL_LIBDIR} OUTPUT_VARIABLE libdir_of_pkgconfig)
cmake_path(APPEND prefix_of_pkgconfig ${CMAKE_INSTALL_INCLUDEDIR} OUTPUT_VARIABLE includedir_of_pkgconfig)
configure_file(${CMAKE_CURRENT_LIST_DIR}/flashmask.pc.in flashmask.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/flashmask.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
        COMPONENT flashmask_development)
