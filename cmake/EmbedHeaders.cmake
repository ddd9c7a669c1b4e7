# SPDX-License-Identifier: Apache-2.0
# cmake -D FOLDER=… -D ROOTS=a.cuh,b.cuh -D STAND_IN=b.h -D OUT=… -P EmbedHeaders.cmake
#
# Writes a C++ file with the texts of some headers of FOLDER/src and FOLDER/include, and of all that they include, for
# NVRTC (src/cuda/compile). Headers of other places include STAND_IN, one of FOLDER's.
cmake_minimum_required(VERSION 3.22)
string(REPLACE "," ";" waiting "${ROOTS},${STAND_IN}")
set(done)
set(foreign)
set(entries)
while(waiting)
  list(POP_FRONT waiting name)
  if(name IN_LIST done)
    continue()
  endif()
  list(APPEND done ${name})
  set(path)
  foreach(root IN ITEMS src include)
    if(EXISTS "${FOLDER}/${root}/${name}")
      set(path "${FOLDER}/${root}/${name}")
    endif()
  endforeach()
  if(NOT path)
    list(APPEND foreign ${name})
    continue()
  endif()
  file(READ "${path}" text)
  string(REGEX MATCHALL "#include [<\"][^>\"]+[>\"]" lines "${text}")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "#include [<\"]([^>\"]+)[>\"]" "\\1" included "${line}")
    list(APPEND waiting ${included})
  endforeach()
  string(APPEND entries "    {\"${name}\", R\"header(${text})header\"},\n")
endwhile()
foreach(name IN LISTS foreign)
  string(APPEND entries "    {\"${name}\", \"#include \\\"${STAND_IN}\\\"\\n\"},\n")
endforeach()
file(WRITE "${OUT}" "// Written by cmake/EmbedHeaders.cmake.
#include \"cuda/compile/sources.h\"

namespace flashmask::cuda::compile {
namespace {

constexpr Source kSources[] = {
${entries}};

}  // namespace

std::span<const Source> sources() { return kSources; }

}  // namespace flashmask::cuda::compile
")
