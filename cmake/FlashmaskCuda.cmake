# CUDA sources are compiled for the instructions of the architectures asked for and hold no code for others: those of an
# "a" run on no other. The runtime is linked in and looks for the driver when it is first used: the library loads on any
# machine.
set(FLASHMASK_CUDA_ARCHITECTURES 90a CACHE STRING
    "Architectures of NVIDIA GPUs to build kernels for, as nvcc numbers them (90a: H100 and H200)")

# Those that there are kernels for, each with its folder in src/cuda and, for its instructions, in tests/cuda.
set(flashmask_folder_of_90a sm90)

if(NOT FLASHMASK_CUDA_ARCHITECTURES)
  message(FATAL_ERROR "FLASHMASK_CUDA_ARCHITECTURES is empty; expected 90a, or FLASHMASK_CUDA=OFF for no kernels for GPUs")
endif()
foreach(architecture IN LISTS FLASHMASK_CUDA_ARCHITECTURES)
  if(NOT DEFINED flashmask_folder_of_${architecture})
    message(FATAL_ERROR "FLASHMASK_CUDA_ARCHITECTURES has ${architecture}, for which there are no kernels; expected 90a")
  endif()
endforeach()
list(TRANSFORM FLASHMASK_CUDA_ARCHITECTURES APPEND -real OUTPUT_VARIABLE CMAKE_CUDA_ARCHITECTURES)
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

# Spills, and products that the assembler had to put one after the other, cost more than any change gains: they fail the
# build.
function(flashmask_cuda target)
  target_compile_options(${target} PRIVATE
                         "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;-Xptxas=--warn-on-spills;-Xcompiler=-fvisibility=hidden>")
  if(FLASHMASK_WERROR)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings;-Xptxas=--warning-as-error>")
  endif()
  target_link_libraries(${target} PUBLIC CUDA::cudart_static)
endfunction()
