# SPDX-License-Identifier: Apache-2.0
# cmake -D README=… -D EXAMPLE=… -P readme_example.cmake
# The C++ block of the README is examples/example.cpp, letter by letter, without the line that names its licence.
cmake_minimum_required(VERSION 3.22)

file(READ ${README} readme)
file(READ ${EXAMPLE} example)
string(REGEX REPLACE "^// SPDX[^\n]*\n" "" example "${example}")
string(FIND "${readme}" "```cpp\n${example}```" position)
if(position EQUAL -1)
  message(FATAL_ERROR "the C++ example of ${README} is not ${EXAMPLE}; copy it there")
endif()
