// SPDX-License-Identifier: Apache-2.0
#include "cuda/compile/nvrtc.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <regex>

#include "cuda/compile/sources.h"
#include "flashmask/error.h"

namespace flashmask::cuda::compile {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNames[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
constexpr int kOldest[2] = {12, 5};

using Program = void*;

/// Calls body(path) for each library of the process.
template <class Body>
void for_each_library(const Body& body) {
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* to) {
        (*static_cast<const Body*>(to))(std::string(info->dlpi_name));
        return 0;
      },
      const_cast<Body*>(&body));
}

/// Files of NVRTC in a folder, newest first.
void add_folder(const fs::path& folder, std::vector<std::string>& places) {
  std::error_code none;
  for (const char* name : kNames)
    if (fs::exists(folder / name, none)) places.push_back((folder / name).string());
}

/// Folders of libraries of CUDA that the process has loaded, and of NVIDIA's wheels beside them.
void add_neighbours(std::vector<std::string>& places) {
  for_each_library([&](const std::string& path) {
    if (path.find("/libcudart.so") != std::string::npos || path.find("/libcublas.so") != std::string::npos)
      add_folder(fs::path(path).parent_path(), places);
    const std::size_t at = path.rfind("/nvidia/");
    if (at == std::string::npos) return;
    for (const char* folder : {"cu13/lib", "cuda_nvrtc/lib"})
      add_folder(fs::path(path.substr(0, at + 8)) / folder, places);
  });
}

/// NVRTC opens this library by its name alone; it finds one that is loaded.
void load_builtins(const fs::path& folder) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none))
    if (entry.path().filename().string().starts_with("libnvrtc-builtins.so")) dlopen(entry.path().c_str(), RTLD_NOW);
}

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

/// Products of tiles that the assembler puts one after the other cost more than any spill.
int spilled_bytes(const std::string& log) {
  static const std::regex spills("(\\d+) bytes spill stores, (\\d+) bytes spill loads");
  int most = log.find("wgmma.mma_async instructions are serialized") == std::string::npos ? 0 : Code::kSerialized;
  for (auto each = std::sregex_iterator(log.begin(), log.end(), spills); each != std::sregex_iterator(); ++each)
    most = std::max({most, std::stoi((*each)[1]), std::stoi((*each)[2])});
  return most;
}

}  // namespace

struct Nvrtc::Functions {
  int (*version)(int*, int*);
  int (*create)(Program*, const char*, const char*, int, const char* const*, const char* const*);
  int (*destroy)(Program*);
  int (*add_name)(Program, const char*);
  int (*compile)(Program, int, const char* const*);
  int (*log_size)(Program, std::size_t*);
  int (*log)(Program, char*);
  int (*lowered_name)(Program, const char*, const char**);
  int (*cubin_size)(Program, std::size_t*);
  int (*cubin)(Program, char*);
  const char* (*error)(int);

  bool load(void* library) {
    return find(library, "nvrtcVersion", version) && find(library, "nvrtcCreateProgram", create) &&
           find(library, "nvrtcDestroyProgram", destroy) && find(library, "nvrtcAddNameExpression", add_name) &&
           find(library, "nvrtcCompileProgram", compile) && find(library, "nvrtcGetProgramLogSize", log_size) &&
           find(library, "nvrtcGetProgramLog", log) && find(library, "nvrtcGetLoweredName", lowered_name) &&
           find(library, "nvrtcGetCUBINSize", cubin_size) && find(library, "nvrtcGetCUBIN", cubin) &&
           find(library, "nvrtcGetErrorString", error);
  }

  void check(int answer, const char* what) const {
    if (answer != 0) throw Error(Status::internal, std::string("NVRTC: ") + what + ": " + error(answer));
  }

  std::string log_of(Program program) const {
    std::size_t size = 0;
    if (log_size(program, &size) != 0 || size < 2) return "";
    std::string text(size, 0);
    log(program, text.data());
    text.resize(size - 1);
    return text;
  }
};

std::vector<std::string> nvrtc_places() {
  std::vector<std::string> places;
  if (const char* set = std::getenv("FLASHMASK_NVRTC"); set != nullptr && *set != 0) {
    if (fs::is_directory(set))
      add_folder(set, places);
    else
      places.emplace_back(set);
    return places.empty() ? std::vector{std::string(set) + "/" + kNames[0]} : places;
  }
  for_each_library([&](const std::string& path) {
    if (path.find("/libnvrtc.so.") != std::string::npos) places.push_back(path);
  });
  add_neighbours(places);
  places.insert(places.end(), std::begin(kNames), std::end(kNames));
  add_folder("/usr/local/cuda/lib64", places);
  std::vector<std::string> once;
  for (const std::string& place : places)
    if (std::ranges::find(once, place) == once.end()) once.push_back(place);
  return once;
}

Nvrtc::Nvrtc(const std::vector<std::string>& places) {
  std::string searched;
  for (const std::string& place : places) {
    if (load(place)) return;
    searched += (searched.empty() ? "" : ", ") + place;
  }
  throw Error(Status::unsupported,
              "this change of scores needs a kernel that NVRTC compiles, version 12.5 or newer, which "
              "was not found (searched " +
                  searched + "); pip install nvidia-cuda-nvrtc, or name its file in FLASHMASK_NVRTC");
}

bool Nvrtc::load(const std::string& file) {
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return false;
  auto functions = std::make_unique<Functions>();
  int major = 0, minor = 0;
  Dl_info where{};
  if (!functions->load(library) || functions->version(&major, &minor) != 0 ||
      std::pair(major, minor) < std::pair(kOldest[0], kOldest[1]) ||
      dladdr(reinterpret_cast<void*>(functions->version), &where) == 0) {
    dlclose(library);
    return false;
  }
  std::error_code none;
  const fs::path path = fs::canonical(where.dli_fname, none);
  load_builtins(path.parent_path());
  file_ = path.string();
  version_ =
      std::to_string(major) + "." + std::to_string(minor) + ", " + std::to_string(fs::file_size(path, none)) + " bytes";
  functions_ = functions.release();
  return true;
}

Code Nvrtc::compile(const Job& job) const {
  const Functions& call = *functions_;
  std::vector<const char*> names, texts;
  for (const Source& source : sources()) {
    names.push_back(source.name);
    texts.push_back(source.text);
  }
  Program made = nullptr;
  call.check(
      call.create(&made, job.text.c_str(), "kernel.cu", static_cast<int>(names.size()), texts.data(), names.data()),
      "nvrtcCreateProgram");
  const auto destroy = [&](Program program) { call.destroy(&program); };
  const std::unique_ptr<void, decltype(destroy)> program(made, destroy);
  call.check(call.add_name(made, job.kernel.c_str()), "nvrtcAddNameExpression");
  const std::string architecture = "--gpu-architecture=" + job.architecture;
  const char* const options[] = {architecture.c_str(), "--std=c++20", "-default-device", "--ptxas-options=-v",
                                 "--disable-warnings"};
  const int answer = call.compile(made, static_cast<int>(std::size(options)), options);
  const std::string log = call.log_of(made);
  if (answer != 0)
    throw Error(Status::internal, file_ + " (NVRTC " + version_ + ") does not compile " + job.kernel + " for " +
                                      job.architecture + ": " + call.error(answer) + "\n" + log);
  const char* kernel = nullptr;
  call.check(call.lowered_name(made, job.kernel.c_str(), &kernel), "nvrtcGetLoweredName");
  std::size_t size = 0;
  call.check(call.cubin_size(made, &size), "nvrtcGetCUBINSize");
  Code code{std::string(size, 0), kernel, spilled_bytes(log), job.made_for};
  call.check(call.cubin(made, code.cubin.data()), "nvrtcGetCUBIN");
  return code;
}

const Nvrtc& nvrtc() {
  static const Nvrtc found(nvrtc_places());
  return found;
}

std::string nvrtc_refusal() {
  try {
    nvrtc();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace flashmask::cuda::compile
