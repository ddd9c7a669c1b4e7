# Warnings for the project's own targets; never for those who link it.
function(flashmask_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor> $<$<COMPILE_LANGUAGE:CXX>:-Wextra-semi>)
  if(FLASHMASK_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()
