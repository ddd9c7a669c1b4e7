// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands/subcommands.h"
#include "flashmask/compiled_kernels.h"

namespace flashmask::cli {
namespace {

using Json = nlohmann::ordered_json;

struct CacheOptions {
  bool clear = false, json = false;
};

Json cache_json(const std::vector<CachedKernel>& kernels) {
  Json all = Json::array();
  for (const CachedKernel& kernel : kernels)
    all.push_back({{"kernel", kernel.name},
                   {"shape", kernel.shape},
                   {"architecture", kernel.architecture},
                   {"compiler", kernel.compiler},
                   {"change", kernel.change},
                   {"code", kernel.code},
                   {"file", kernel.file},
                   {"bytes", kernel.bytes},
                   {"made", kernel.made},
                   {"spilled_bytes", kernel.spilled}});
  return {{"folder", kernel_cache_folder()}, {"refusal", kernel_cache_refusal()}, {"kernels", all}};
}

std::string cleared() {
  const std::size_t removed = clear_cached_kernels();
  return "removed " + std::to_string(removed) + (removed == 1 ? " kernel\n" : " kernels\n");
}

}  // namespace

void add_cache(CLI::App& command, Console& console, int&) {
  Subcommand sub(command, "cache", "The kernels on disk that were compiled for changes of scores");
  const auto options = std::make_shared<CacheOptions>();
  sub.flag("--clear", options->clear, "Remove them, and the locks beside them");
  sub.flag("--json", options->json, "Print JSON, with the code of each change");
  sub.footer("The folder is FLASHMASK_CACHE, else flashmask in XDG_CACHE_HOME, else ~/.cache/flashmask.");
  sub.on_run([options, &console] {
    if (options->clear) {
      console.out << cleared();
      return;
    }
    console.out << (options->json ? cache_json(cached_kernels()).dump(2) + "\n" : describe_cached_kernels());
  });
}

}  // namespace flashmask::cli
