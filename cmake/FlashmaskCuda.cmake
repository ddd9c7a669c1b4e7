# SPDX-License-Identifier: Apache-2.0
# CUDA sources are compiled for the architectures asked for, as CMake names them: machine code, PTX that the driver
# compiles for newer GPUs, or, of plain numbers, both. Code of an "a" runs on no other GPU. The runtime is linked in and
# looks for the driver when it is first used: the library loads on any machine.
set(FLASHMASK_CUDA_ARCHITECTURES "80;90a" CACHE STRING
    "Architectures of NVIDIA GPUs to build kernels for, as nvcc numbers them (90a: H100 and H200; 80: all since the A100)")

# Each folder of kernels in src/cuda and, for its instructions, tests/cuda, best first, with those of the architectures
# that it is for: of 90a-real its own, of all others those that run anywhere.
set(flashmask_cuda_folders sm90 sm80)
set(flashmask_sm90_architectures ${FLASHMASK_CUDA_ARCHITECTURES})
list(FILTER flashmask_sm90_architectures INCLUDE REGEX "^90a")
list(TRANSFORM flashmask_sm90_architectures REPLACE "^90a$" "90a-real")
set(flashmask_sm80_architectures ${FLASHMASK_CUDA_ARCHITECTURES})
list(FILTER flashmask_sm80_architectures EXCLUDE REGEX "^90a")

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
find_package(CUDAToolkit REQUIRED)

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
