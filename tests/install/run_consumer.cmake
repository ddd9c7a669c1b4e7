# SPDX-License-Identifier: Apache-2.0
# cmake -D FROM=… -D BUILD=<build tree to install from> -D SOURCE=… -D WORK=… -D SHARED=ON|OFF -D WERROR=ON|OFF
# -P run_consumer.cmake
# Configures, builds and runs consumer/ in an empty folder.
cmake_minimum_required(VERSION 3.22)

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
set(arguments -D CMAKE_BUILD_TYPE=Release -D FLASHMASK_FROM=${FROM} -D FLASHMASK_SOURCE=${SOURCE} -D BUILD_SHARED_LIBS=${SHARED}
              -D CMAKE_CXX_COMPILER=${CXX} -D CMAKE_C_COMPILER=${CC}
              -D FLASHMASK_WERROR=${WERROR})  # as BUILD has it: a compiler cache then knows the library's objects
if(FROM STREQUAL "find_package" OR FROM STREQUAL "pkg-config")
  run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/staged)
  # Moved after installation: nothing may remember where it was put first.
  file(RENAME ${WORK}/staged ${WORK}/prefix)
  list(APPEND arguments -D CMAKE_PREFIX_PATH=${WORK}/prefix)
endif()

# Beside BUILD: a compiler cache counts paths from here.
set(build ${BUILD}-${FROM})
file(REMOVE_RECURSE ${build})
run(${CMAKE_COMMAND} -G Ninja -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${build} ${arguments})
run(${CMAKE_COMMAND} --build ${build})
run(${CMAKE_CTEST_COMMAND} --test-dir ${build} --output-on-failure --no-tests=error)
if(EXISTS ${WORK}/prefix/bin/flashmask)
  run(${WORK}/prefix/bin/flashmask info)
endif()
