# SPDX-License-Identifier: Apache-2.0
# FLASHMASK_SANITIZE: what -fsanitize= takes, such as "address,undefined" or "thread". Applies to the whole build,
# because a program must be instrumented as one.
set(FLASHMASK_SANITIZE "" CACHE STRING "Sanitizers to build with, comma separated")
option(FLASHMASK_SANITIZE_KERNELS "Instrument the kernels for CPUs too: six times as long to compile" ON)
if(FLASHMASK_SANITIZE)
  add_compile_options(-fsanitize=${FLASHMASK_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${FLASHMASK_SANITIZE})
endif()
if(FLASHMASK_SANITIZE MATCHES "address.*undefined|undefined.*address")
  # AddressSanitizer catches what these look for where it matters, and with them the kernels, which are inlined whole,
  # take ten minutes a file to compile.
  add_compile_options(-fno-sanitize=null,pointer-overflow,object-size)
endif()

# flashmask_fuzzed(<target>): lets fuzz targets see which branches of its code an input took.
function(flashmask_fuzzed target)
  if(FLASHMASK_FUZZ)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
endfunction()
if(FLASHMASK_FUZZ)
  # No fuzz target computes attention.
  set(flashmask_kernel_sanitizer_flags -fno-sanitize=fuzzer-no-link)
endif()
if(FLASHMASK_SANITIZE AND NOT FLASHMASK_SANITIZE_KERNELS)
  list(APPEND flashmask_kernel_sanitizer_flags -fno-sanitize=all)
endif()
