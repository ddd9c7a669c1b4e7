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

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/flashmask)
install(EXPORT flashmaskTargets NAMESPACE flashmask:: DESTINATION ${config_dir} COMPONENT flashmask_development)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/flashmaskConfig.cmake.in flashmaskConfig.cmake
                              INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(flashmaskConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/flashmaskConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/flashmaskConfigVersion.cmake
        DESTINATION ${config_dir} COMPONENT flashmask_development)

# Relative to the .pc file itself, so that an installed tree can be moved.
file(RELATIVE_PATH prefix_from_pkgconfig ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(${CMAKE_CURRENT_LIST_DIR}/flashmask.pc.in flashmask.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/flashmask.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
        COMPONENT flashmask_development)
