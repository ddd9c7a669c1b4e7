// SPDX-License-Identifier: Apache-2.0
#include "cuda/device_array.cuh"
#include "cuda/instruction_results.cuh"

namespace flashmask::cuda {
namespace {

using check::DeviceArray;

__global__ void run(InstructionResults* results, const std::uint32_t* given, float* sums) {
  run_instructions(results, given, sums);
}

TEST(MmaInstructions, DoWhatTheirCommentsSay) {
  const DeviceArray<InstructionResults> results(32);
  const DeviceArray<std::uint32_t> given(given_words());
  const DeviceArray<float> sums(std::vector<float>(8, 0));
  run<<<1, 32, sizeof(InstructionMemory)>>>(results.data(), given.data(), sums.data());
  expect_instructions(results.values(), sums.values());
}

}  // namespace
}  // namespace flashmask::cuda
