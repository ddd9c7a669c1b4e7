// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <typeinfo>

#include "cuda/compile/change_text.h"
#include "flashmask/problem.h"

/// Kernels that are compiled when a plan is made, for changes of scores of which the library has no instance.
namespace flashmask::cuda {

/// Stands for the struct of this name that NVRTC compiles (scores/score_change.cuh): hosts only name it.
struct Change;

/// Whether a problem's kernels are compiled when its plan is made.
inline bool compiles_change(const Problem& problem) { return !problem.change.is_cap_and_bias(); }

/// Returns the kernel that an expression names, such as f<int>, where `headers`, lines of #include, declare it and the
/// problem's change of scores is struct Change: compiled for the problem's device, from memory where it was asked for
/// before. Throws Status::unsupported where there is no compiler, or where `stream` is being captured and nobody has
/// asked for this kernel before.
const void* compiled_kernel(const char* headers, const std::string& name, const Problem& problem, void* stream);

/// Returns the first of these kernels whose registers suffice for the problem's change, or else one that spills least.
const void* compiled_kernel(const char* headers, std::span<const std::string> names, const Problem& problem,
                            void* stream);

/// Returns a type as C++ writes it.
template <class T>
const std::string& type_name() {
  static const std::string name = [] {
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> text(
        abi::__cxa_demangle(typeid(T).name(), nullptr, nullptr, &status), std::free);
    return std::string(text.get());
  }();
  return name;
}

/// Returns the kernel `function`<Shape>, with arguments of this type.
template <class Shape, class Arguments>
auto compiled_kernel(const char* headers, const char* function, const Problem& problem, void* stream) {
  static const std::string name = std::string(function) + "<" + type_name<Shape>() + ">";
  return reinterpret_cast<void (*)(Arguments)>(const_cast<void*>(compiled_kernel(headers, name, problem, stream)));
}

/// Returns the kernel of one of these shapes, of which the first whose registers suffice is the best.
template <class Kernel, class... Shapes>
Kernel best_compiled_kernel(const char* headers, const char* function, const Problem& problem, void* stream) {
  static const std::string names[] = {std::string(function) + "<" + type_name<Shapes>() + ">" ...};
  return reinterpret_cast<Kernel>(const_cast<void*>(compiled_kernel(headers, names, problem, stream)));
}

}  // namespace flashmask::cuda
