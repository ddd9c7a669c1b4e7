# CUDA sources are compiled for Hopper's own instructions, which no other architecture runs, and hold no code for others.
# The runtime is linked in and looks for the driver when it is first used: the library loads on any machine.
set(CMAKE_CUDA_ARCHITECTURES 90a-real)
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
