# SPDX-License-Identifier: Apache-2.0
# cmake -D CXX=… -D INCLUDE=… -P language_standard.cmake
# A header of the C++ library says in C++17 that it needs C++20; those of the C ABI ask C++11 only.
cmake_minimum_required(VERSION 3.22)

set(c_headers c_api.h export.h version.h)
file(GLOB headers RELATIVE ${INCLUDE}/flashmask ${INCLUDE}/flashmask/*.h)
foreach(header IN LISTS headers)
  set(standard 17)
  if(header IN_LIST c_headers)
    set(standard 11)
  endif()
  execute_process(COMMAND ${CXX} -std=c++${standard} -fsyntax-only -x c++ -I ${INCLUDE} ${INCLUDE}/flashmask/${header}
                  RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE errors)
  if(header IN_LIST c_headers AND NOT status EQUAL 0)
    message(SEND_ERROR "${header} is no C++${standard}: ${errors}")
  elseif(NOT header IN_LIST c_headers AND NOT errors MATCHES "needs C\\+\\+20: compile with -std=c\\+\\+20")
    message(SEND_ERROR "${header} does not say in C++17 that it needs C++20: ${errors}")
  endif()
endforeach()
