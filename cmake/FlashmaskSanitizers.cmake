# FLASHMASK_SANITIZE: what -fsanitize= takes, such as "address,undefined" or "thread". Applies to the whole build,
# because a program must be instrumented as one.
set(FLASHMASK_SANITIZE "" CACHE STRING "Sanitizers to build with, comma separated")
if(FLASHMASK_SANITIZE)
  add_compile_options(-fsanitize=${FLASHMASK_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${FLASHMASK_SANITIZE})
endif()
if(FLASHMASK_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# A CPU kernel is one function of thousands of inlined steps that pass references to each other. Checking each of those
# takes the compiler ten minutes a file and finds nothing: what a kernel reads and writes in memory stays checked.
# Nothing that is fuzzed reaches a kernel.
set(flashmask_kernel_sanitizer_flags "")
if(FLASHMASK_FUZZ)
  set(flashmask_kernel_sanitizer_flags -fno-sanitize=all)
elseif(FLASHMASK_SANITIZE)
  set(flashmask_kernel_sanitizer_flags -fno-sanitize-address-use-after-scope -fno-sanitize=null,alignment,object-size,vptr)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    list(APPEND flashmask_kernel_sanitizer_flags --param=asan-stack=0)
  else()
    list(APPEND flashmask_kernel_sanitizer_flags "SHELL:-mllvm -asan-stack=0")
  endif()
endif()
