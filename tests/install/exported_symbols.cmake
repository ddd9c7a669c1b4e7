# SPDX-License-Identifier: Apache-2.0
# cmake -D NM=… -D LIBRARY=… -P exported_symbols.cmake
# Every name that the shared library exports belongs to flashmask or is its version, and the C ABI is among them.
cmake_minimum_required(VERSION 3.22)

execute_process(COMMAND ${NM} --dynamic --defined-only --format=just-symbols ${LIBRARY} OUTPUT_VARIABLE output
                COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE "@[^\n]*" "" output "${output}")
string(REGEX REPLACE "\n" ";" symbols "${output}")
list(FILTER symbols EXCLUDE REGEX "^$")
set(strangers ${symbols})
list(FILTER strangers EXCLUDE REGEX "^(FLASHMASK_[0-9.]+$|flashmask_|_ZNK?9flashmask|_ZT[ISV]N9flashmask)")
if(strangers)
  message(FATAL_ERROR "exported, but not flashmask's: ${strangers}")
endif()
foreach(name IN ITEMS flashmask_forward flashmask_backward flashmask_plan_create flashmask_last_error)
  if(NOT name IN_LIST symbols)
    message(FATAL_ERROR "${name} is not exported")
  endif()
endforeach()
