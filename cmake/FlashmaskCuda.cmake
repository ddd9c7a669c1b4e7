# SPDX-License-Identifier: Apache-2.0
# CUDA sources are compiled for the architectures asked for, as CMake names them: machine code, PTX that the driver
# compiles for newer GPUs, or, of plain numbers, both. Code of an "a" runs on no other GPU. The runtime is linked in and
# looks for the driver when it is first used: the library loads on any machine.
#
# The default is machine code for every 8.x and for Hopper, which takes kernels of both folders, and PTX for what comes.
# A newer GPU of this machine gets machine code too: a driver takes up to a minute to compile the PTX of one call.
find_package(CUDAToolkit REQUIRED)
set(flashmask_default_architectures 80 90-real 90a)
execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                OUTPUT_VARIABLE gpus_here RESULT_VARIABLE no_gpus_here ERROR_QUIET)
if(no_gpus_here EQUAL 0 AND CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.8)
  string(REGEX MATCHALL "1[0-9]\\.[0-9]" gpus_here "${gpus_here}")
  list(TRANSFORM gpus_here REPLACE "(.*)\\.(.*)" "\\1\\2-real")
  list(APPEND flashmask_default_architectures ${gpus_here})
  list(REMOVE_DUPLICATES flashmask_default_architectures)
endif()
set(FLASHMASK_CUDA_ARCHITECTURES "${flashmask_default_architectures}" CACHE STRING
    "Architectures of NVIDIA GPUs to build kernels for, as nvcc numbers them (90a: H100 and H200; 80: all since the A100)")

# Each folder of kernels in src/cuda and, for its instructions, tests/cuda, best first, with those of the architectures
# that it is for: of 90a-real its own, of all others those that run anywhere.
set(flashmask_cuda_folders sm90 sm80)
set(flashmask_sm90_architectures ${FLASHMASK_CUDA_ARCHITECTURES})
list(FILTER flashmask_sm90_architectures INCLUDE REGEX "^90a")
list(TRANSFORM flashmask_sm90_architectures REPLACE "^90a$" "90a-real")
set(flashmask_sm80_architectures ${FLASHMASK_CUDA_ARCHITECTURES})
list(FILTER flashmask_sm80_architectures EXCLUDE REGEX "^90a")
# Files named …_compact.cu, for GPUs whose blocks have 99 KB of shared memory: plans never choose them on an H100 or
# B200, whose machine code they go without where they have other code. Asked for by name there, the driver compiles it.
set(flashmask_compact_architectures ${flashmask_sm80_architectures})
list(FILTER flashmask_compact_architectures EXCLUDE REGEX "^(90|10[0-9]|110)[af]?-real$")
if(NOT flashmask_compact_architectures)
  set(flashmask_compact_architectures ${flashmask_sm80_architectures})
endif()

if(NOT FLASHMASK_CUDA_ARCHITECTURES)
  message(FATAL_ERROR "FLASHMASK_CUDA_ARCHITECTURES is empty; expected numbers such as 80 and 90a, or FLASHMASK_CUDA=OFF "
                      "for no kernels for GPUs")
endif()
foreach(architecture IN LISTS FLASHMASK_CUDA_ARCHITECTURES)
  if(NOT architecture MATCHES "^(90a(-real)?|(8[0-9]|9[0-9]|1[0-9][0-9])[af]?(-real|-virtual)?)$")
    message(FATAL_ERROR "FLASHMASK_CUDA_ARCHITECTURES has ${architecture}, for which there are no kernels; expected 90a, "
                        "or 80 and later such as 80-real, 90-real, 120")
  endif()
endforeach()
set(CMAKE_CUDA_ARCHITECTURES ${flashmask_sm80_architectures} ${flashmask_sm90_architectures})
enable_language(CUDA)

# Spills, and products that the assembler had to put one after the other, cost more than any change gains: they fail the
# build of machine code. PTX keeps the assembler's options, and a driver that compiles it for a newer GPU would stop at a
# register spilled there.
function(flashmask_cuda target)
  target_compile_options(${target} PRIVATE
                         "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;-Xptxas=--warn-on-spills;-Xcompiler=-fvisibility=hidden>")
  if(FLASHMASK_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings>)
    set(architectures ${FLASHMASK_CUDA_ARCHITECTURES})
    list(FILTER architectures EXCLUDE REGEX "^90a$|-real$")
    if(NOT architectures)
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=--warning-as-error>)
    endif()
  endif()
  target_link_libraries(${target} PUBLIC CUDA::cudart_static)
endfunction()
