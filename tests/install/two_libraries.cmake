# SPDX-License-Identifier: Apache-2.0
# cmake -D NM=… -D CC=… -D LIBRARY=… -D PROGRAM=… -D LOADED=… -D VERSION=… -D WORK=… -P two_libraries.cmake
# Another flashmask is in the process first: one whose functions end it. A program that is linked against LIBRARY does
# not call an older one, and LIBRARY, loaded by its path, does not call one of its own version.
cmake_minimum_required(VERSION 3.22)

execute_process(COMMAND ${NM} --dynamic --defined-only --format=posix ${LIBRARY} OUTPUT_VARIABLE symbols
                COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^ @\n]+[^ \n]* [TW] " functions "${symbols}")

# Makes a library of this version with the functions of LIBRARY.
function(make_other version result)
  set(number 0)
  set(code "")
  foreach(function IN LISTS functions)
    math(EXPR number "${number} + 1")
    string(REGEX REPLACE "[@ ].*" "" name "${function}")
    string(APPEND code "void f${number}(void) __asm__(\"${name}\");\nvoid f${number}(void) { __builtin_trap(); }\n")
  endforeach()
  set(folder ${WORK}/${version})
  file(WRITE ${folder}/other.c "${code}")
  file(WRITE ${folder}/other.map "FLASHMASK_${version} { *; };\n")
  execute_process(COMMAND ${CC} -shared -fPIC ${folder}/other.c -Wl,--version-script=${folder}/other.map
                          -o ${folder}/libother.so COMMAND_ERROR_IS_FATAL ANY)
  set(${result} ${folder}/libother.so PARENT_SCOPE)
endfunction()

function(expect_success what other)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env LD_PRELOAD=${other} ${ARGN} RESULT_VARIABLE status OUTPUT_QUIET)
  if(NOT status EQUAL 0)
    message(SEND_ERROR "${what}: ${status}")
  endif()
endfunction()

make_other(0.0 older)
make_other(${VERSION} same)
expect_success("a program beside an older library" ${older} ${PROGRAM})
expect_success("a library beside an older one" ${older} ${LOADED} ${LIBRARY})
expect_success("a library beside another of its version" ${same} ${LOADED} ${LIBRARY})
