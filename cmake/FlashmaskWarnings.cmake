# SPDX-License-Identifier: Apache-2.0
# Warnings for the project's own C and C++ targets; never for those who link it. CUDA's are in FlashmaskCuda.
function(flashmask_warnings target)
  set(warnings -Wall -Wextra -Wpedantic -Wshadow)
  # GCC 12 sees overlapping copies in "text" + std::string where there are none (its bug 105651).
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    list(APPEND warnings -Wno-restrict)
  endif()
  if(FLASHMASK_WERROR)
    list(APPEND warnings -Werror)
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:C,CXX>:${warnings}>"
                                           $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>
                                           $<$<COMPILE_LANGUAGE:CXX>:-Wextra-semi>)
endfunction()
