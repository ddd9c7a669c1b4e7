# SPDX-License-Identifier: Apache-2.0
# cmake -D SOURCE=… -D WORK=… -D CC=… -D CXX=… -D AR=… -D CUDA=ON|OFF -P static_library.cmake
# A static library, made and installed by a project that adds flashmask and never says BUILD_SHARED_LIBS, in folders given
# as absolute: CMake and pkg-config find it and what it needs. An archive of one function stands in for the library.
cmake_minimum_required(VERSION 3.22)

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
endfunction()

# Configures a project that must not come to be, and returns what it says.
function(refusal result folder)
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${folder} -B ${WORK}/refused -D CMAKE_C_COMPILER=${CC} ${ARGN}
                  RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE said)
  file(REMOVE_RECURSE ${WORK}/refused)
  if(status EQUAL 0)
    message(SEND_ERROR "configured: ${folder} ${ARGN}")
  endif()
  string(REGEX REPLACE "[ \n]+" " " said "${said}")
  set(${result} "${said}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK})
set(consumer ${CMAKE_CURRENT_LIST_DIR}/consumer)
set(build ${WORK}/build)
set(adding -D FLASHMASK_FROM=add_subdirectory -D FLASHMASK_SOURCE=${SOURCE})
execute_process(COMMAND ${CMAKE_COMMAND} -S ${consumer} -B ${build} ${adding} -D CMAKE_C_COMPILER=${CC}
                        -D CMAKE_CXX_COMPILER=${CXX} -D FLASHMASK_INSTALL=ON -D FLASHMASK_CUDA=${CUDA}
                        -D CMAKE_INSTALL_PREFIX=${WORK}/prefix -D CMAKE_INSTALL_LIBDIR=${WORK}/libraries
                        -D CMAKE_INSTALL_INCLUDEDIR=${WORK}/headers
                OUTPUT_QUIET ERROR_VARIABLE said COMMAND_ERROR_IS_FATAL ANY)
if(NOT said MATCHES "no CMAKE_BUILD_TYPE")
  message(SEND_ERROR "nothing says that kernels are not optimised: ${said}")
endif()

# What stands in for the library, and a program.
file(WRITE ${WORK}/library.cpp "#include <string>
extern \"C\" int cudaRuntimeGetVersion(int*);
extern \"C\" std::size_t flashmask_stand_in(int count) {
#ifdef FLASHMASK_CUDA
  cudaRuntimeGetVersion(&count);
#endif
  return std::to_string(count).size();
}
")
if(CUDA)
  set(definitions -D FLASHMASK_CUDA)
endif()
run(${CXX} ${definitions} -c ${WORK}/library.cpp -o ${WORK}/library.o)
run(${AR} rc ${build}/flashmask/src/libflashmask.a ${WORK}/library.o)
run(${CMAKE_COMMAND} --install ${build})
file(WRITE ${WORK}/program/program.c "#include <flashmask/version.h>
#include <stddef.h>
size_t flashmask_stand_in(int);
int main(void) { return flashmask_stand_in(1) == 0; }
")
file(WRITE ${WORK}/program/CMakeLists.txt "cmake_minimum_required(VERSION 3.22)
project(program LANGUAGES \${LANGUAGES})
find_package(flashmask 0.1 CONFIG REQUIRED)
add_executable(program program.c)
target_link_libraries(program PRIVATE flashmask::flashmask)
")

set(finding -D flashmask_DIR=${WORK}/libraries/cmake/flashmask)
run(${CMAKE_COMMAND} -S ${WORK}/program -B ${WORK}/program/build ${finding} "-DLANGUAGES=C\\;CXX" -D CMAKE_C_COMPILER=${CC}
    -D CMAKE_CXX_COMPILER=${CXX})
run(${CMAKE_COMMAND} --build ${WORK}/program/build)

find_program(pkg_config pkg-config)
if(pkg_config)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env PKG_CONFIG_PATH=${WORK}/libraries/pkgconfig ${pkg_config} --static --cflags
                          --libs flashmask OUTPUT_VARIABLE options COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(options UNIX_COMMAND "${options}")
  run(${CC} ${WORK}/program/program.c ${options} -o ${WORK}/program/by_pkg_config)
endif()

# C alone does not link C++, and is told so.
refusal(found ${WORK}/program ${finding} -D LANGUAGES=C)
refusal(added ${consumer} ${adding} -D FLASHMASK_LANGUAGES=C)
foreach(said IN ITEMS "${found}" "${added}")
  if(NOT said MATCHES "has not enabled C\\+\\+; expected project")
    message(SEND_ERROR "nothing says how to enable C++: ${said}")
  endif()
endforeach()
