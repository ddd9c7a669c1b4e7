// SPDX-License-Identifier: Apache-2.0
#include "flashmask/kernels.h"

#include <mutex>
#include <set>

#include "c_api/sized_struct.h"
#include "flashmask/compiled_kernels.h"
#include "flashmask/score_report.h"
#include "plan/registry.h"

using flashmask::Error;
using flashmask::Kernel;
using flashmask::KernelInfo;
using flashmask::Status;
using flashmask::c_api::guard;
using flashmask::c_api::require;

namespace {

/// Returns a copy of the text that lives as long as the process; equal texts are kept once.
const char* keep(std::string text) {
  static std::mutex mutex;
  static auto& kept = *new std::set<std::string>;
  const std::scoped_lock lock(mutex);
  return kept.insert(std::move(text)).first->c_str();
}

const Kernel& kernel_at(std::int64_t index) {
  const auto table = flashmask::kernel_table();
  if (index < 0 || index >= std::ssize(table)) {
    throw Error(Status::invalid_argument, "kernel_get: index is " + std::to_string(index) + " but this build has " +
                                              std::to_string(table.size()) +
                                              " kernels; give an index from 0 to below that");
  }
  return *table[static_cast<std::size_t>(index)];
}

flashmask_kernel_info to_kernel_info(const Kernel& kernel) {
  const KernelInfo& from = kernel.info();
  flashmask_kernel_info to{};
  to.name = from.name.c_str();
  to.arch = from.arch.c_str();
  to.direction = static_cast<std::int32_t>(from.direction);
  to.dtype = static_cast<std::int32_t>(from.dtype);
  to.device_type = static_cast<std::int32_t>(from.device);
  to.form = static_cast<std::int32_t>(from.predicate);
  to.tile_rows = from.tile.rows;
  to.tile_columns = from.tile.columns;
  to.why_not = keep(kernel.refusal());
  to.head_dim = static_cast<std::int32_t>(from.head_dim);
  to.value_dim = static_cast<std::int32_t>(from.value_dim);
  to.features = from.features.bits();
  to.compute_capability_major = from.capability.major;
  to.compute_capability_minor = from.capability.minor;
  return to;
}

}  // namespace

flashmask_status flashmask_kernel_count(int64_t* count) {
  return guard([&] { require(count, "count") = std::ssize(flashmask::kernel_table()); });
}

flashmask_status flashmask_kernel_get(int64_t index, flashmask_kernel_info* info) {
  return guard([&] { flashmask::c_api::write_struct(to_kernel_info(kernel_at(index)), info, "info"); });
}

flashmask_status flashmask_describe_kernels(int every_kernel, const char** text) {
  return guard([&] { require(text, "text") = keep(flashmask::describe_kernels(every_kernel != 0)); });
}

flashmask_status flashmask_score_check(const char* change) {
  return guard([&] { flashmask::ScoreChange::parse(&require(change, "change")); });
}

flashmask_status flashmask_score_report(const char* change, const char* architecture, int64_t head_dim, int compiles,
                                        const char** text) {
  return guard([&] {
    const flashmask::ScoreReport made = flashmask::report(
        flashmask::read_score(&require(change, "change")),
        {.architecture = architecture == nullptr ? "" : architecture, .head_dim = head_dim, .compiles = compiles != 0});
    require(text, "text") = keep(to_string(made));
  });
}

flashmask_status flashmask_describe_cached_kernels(const char** text) {
  return guard([&] { require(text, "text") = keep(flashmask::describe_cached_kernels()); });
}

flashmask_status flashmask_clear_cached_kernels(int64_t* removed) {
  return guard([&] { require(removed, "removed") = static_cast<std::int64_t>(flashmask::clear_cached_kernels()); });
}

flashmask_status flashmask_instruction_sets(const char** names) {
  return guard([&] {
    require(names, "names");
    std::string all;
    for (const std::string& name : flashmask::instruction_sets()) all += (all.empty() ? "" : " ") + name;
    *names = keep(std::move(all));
  });
}
