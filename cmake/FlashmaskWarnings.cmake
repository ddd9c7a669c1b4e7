# Warnings for the project's own targets; never for those who link it.
function(flashmask_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow
                                           $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>
                                           $<$<COMPILE_LANGUAGE:CXX>:-Wextra-semi>)
  # GCC 12 sees overlapping copies in "text" + std::string where there are none (its bug 105651).
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE -Wno-restrict)
  endif()
  if(FLASHMASK_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()
