// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/base/device_timing.h"
#include "cli/base/machine.h"
#include "cli/base/timing.h"
#include "cli/commands/version.h"
#include "flashmask/builders.h"
#include "flashmask/executor.h"
#include "flashmask/kernels.h"
#include "kit/device_memory.h"
#include "kit/host_tensor.h"
#include "kit/placed_attention.h"

namespace flashmask::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;

Json machine_json() {
  Json gpus = Json::array();
  for (const check::DeviceFacts& device : check::cuda_devices())
    gpus.push_back({{"name", device.name},
                    {"compute_capability", std::to_string(device.major) + "." + std::to_string(device.minor)},
                    {"gigabytes", std::round(static_cast<double>(device.bytes) / 1e9)}});
  return {{"cpu", processor()},
          {"threads", default_executor().workers()},
          {"instruction_sets", instruction_sets()},
          {"system", system_name()},
          {"gpus", gpus}};
}

/// What is timed on a device: few enough scores for a slow CPU, enough for a GPU.
struct Size {
  std::int64_t tokens, heads;
  std::vector<DType> dtypes;
};

Size size_of(Device device) {
  if (device.type == DeviceType::cpu) return {2048, 4, {DType::f32, DType::bf16}};
  return {8192, 16, {DType::bf16}};
}

double seconds_on(Device device, const std::function<void()>& work) {
  return device.type == DeviceType::cpu ? median_seconds(work) : time_on_device(work).sustained;
}

void time_mask(const std::string& name, const Mask& mask, const Problem& problem, Json& rows) {
  const check::AttentionTensors host(problem, 1);
  check::PlacedPlan placed(mask, problem);
  const check::PlacedTensors tensors(host, problem.device);
  placed.forward(tensors.forward());
  BackwardTensors gradients = tensors.backward();
  gradients.grad_lse = {};
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    const double seconds = seconds_on(problem.device, [&] {
      direction == Direction::forward ? placed.forward(tensors.forward()) : placed.backward(gradients);
    });
    rows.push_back({{"mask", name},
                    {"device", problem.device.type == DeviceType::cpu ? "cpu" : "cuda"},
                    {"dtype", to_string(problem.dtype)},
                    {"direction", to_string(direction)},
                    {"tokens", problem.query_length},
                    {"heads", problem.query_heads},
                    {"head_dim", problem.head_dim},
                    {"kernel", placed.plan().kernel(direction).name},
                    {"milliseconds", std::round(seconds * 1e6) / 1e3},
                    {"pytorch_milliseconds", nullptr}});
  }
}

Json speed_json(const std::vector<Device>& devices) {
  Json rows = Json::array();
  for (const Device device : devices) {
    const Size size = size_of(device);
    const std::vector<std::int64_t> documents(8, size.tokens / 8);
    for (const DType dtype : size.dtypes) {
      const Problem problem{.query_length = size.tokens,
                            .key_length = size.tokens,
                            .query_heads = size.heads,
                            .kv_heads = size.heads,
                            .head_dim = 128,
                            .value_dim = 128,
                            .dtype = dtype,
                            .device = device};
      time_mask("causal", masks::causal(size.tokens, size.tokens), problem, rows);
      time_mask("causal_document, 8 documents", masks::causal_document(documents, size.tokens), problem, rows);
    }
  }
  return rows;
}

Json kernels_json(const std::vector<check::KernelVerdict>& verdicts) {
  Json rows = Json::array();
  for (const check::KernelVerdict& one : verdicts)
    rows.push_back({{"kernel", one.kernel},
                    {"cases", one.cases},
                    {"error_over_bound", std::round(one.worst * 1000) / 1000},
                    {"passes", one.passes()}});
  return rows;
}

Json promises_json(const std::vector<check::Promise>& promises) {
  Json rows = Json::array();
  for (const check::Promise& one : promises)
    rows.push_back(
        {{"promise", one.what}, {"device", one.device}, {"dtype", to_string(one.dtype)}, {"holds", one.holds}});
  return rows;
}

}  // namespace

bool Report::passes() const {
  return std::ranges::all_of(kernels, &check::KernelVerdict::passes) &&
         std::ranges::all_of(promises, &check::Promise::holds);
}

Json json_of(const Report& report, const std::vector<Device>& devices) {
  return {{"report", kFormat},
          {"date", today()},
          {"flashmask", version()},
          {"by", "flashmask check"},
          {"machine", machine_json()},
          {"torch", nullptr},
          {"kernels", kernels_json(report.kernels)},
          {"promises", promises_json(report.promises)},
          {"speed", speed_json(devices)},
          {"passes", report.passes()}};
}

std::string how_to_send(const std::string& file) {
  return "Nothing personal is in " + file + "; read it, then send it from a clone of the project:\n" +
         "  gh issue create --title \"Report of a machine\" --body-file " + file + "\n" +
         "or paste it into an issue with this title.\n";
}

}  // namespace flashmask::cli
