# SPDX-License-Identifier: Apache-2.0
# cmake -D SOURCE=… -D WORK=… -D CC=… -D CXX=… -P plain_build.cmake
# `cmake -S . -B build`, with no more than a compiler, is an optimised build of a shared library that a newer compiler's
# new warning does not stop.
cmake_minimum_required(VERSION 3.22)

file(REMOVE_RECURSE ${WORK})
execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK} -D CMAKE_C_COMPILER=${CC} -D CMAKE_CXX_COMPILER=${CXX}
                        -D FLASHMASK_CUDA=OFF -D FLASHMASK_TESTS=OFF -D FLASHMASK_BENCH=OFF -D FLASHMASK_CLI=OFF
                OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
load_cache(${WORK} READ_WITH_PREFIX made_ FLASHMASK_WERROR CMAKE_BUILD_TYPE BUILD_SHARED_LIBS)
if(NOT "${made_FLASHMASK_WERROR},${made_CMAKE_BUILD_TYPE},${made_BUILD_SHARED_LIBS}" STREQUAL "OFF,Release,ON")
  message(FATAL_ERROR "FLASHMASK_WERROR is ${made_FLASHMASK_WERROR}, CMAKE_BUILD_TYPE ${made_CMAKE_BUILD_TYPE}, "
                      "BUILD_SHARED_LIBS ${made_BUILD_SHARED_LIBS}; expected OFF, Release and ON")
endif()
