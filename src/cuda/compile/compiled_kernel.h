// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <typeinfo>

#include "cuda/compile/change_text.h"
#include "flashmask/problem.h"
#include "plan/compile_kernels.h"

/// Kernels that are compiled when a plan is made, for changes of scores of which the library has no instance.
namespace flashmask::cuda {

/// Stands for the struct of this name that NVRTC compiles (scores/score_change.cuh): hosts only name it.
struct Change;

/// Whether a problem's kernels are compiled when its plan is made.
inline bool compiles_change(const Problem& problem) { return !problem.change.is_cap_and_bias(); }

/// Returns the kernel of `code`, in which the problem's change of scores, of tensors of some forms, is struct Change:
/// compiled for the problem's device, from memory where it was asked for before. Throws Status::unsupported where there
/// is no compiler, or where `stream` is being captured and nobody has asked for this kernel before.
/// Where it compiles, what `beside` has compiled for the problem is compiled side by side.
const void* compiled_kernel(const KernelCode& code, const Problem& problem, const TensorForms& forms, void* stream,
                            const Kernel* beside = nullptr);

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

/// Returns the code of the kernel `function`<Shape>, of one of these shapes, which lines of #include declare.
template <class... Shapes>
KernelCode kernel_code(const char* headers, const char* function) {
  return {headers, {std::string(function) + "<" + type_name<Shapes>() + ">" ...}};
}

/// Returns the kernel `function`<Shape>, with arguments of this type.
template <class Shape, class Arguments>
auto compiled_kernel(const char* headers, const char* function, const Problem& problem, const TensorForms& forms,
                     void* stream, const Kernel* beside = nullptr) {
  static const KernelCode code = kernel_code<Shape>(headers, function);
  return reinterpret_cast<void (*)(Arguments)>(
      const_cast<void*>(compiled_kernel(code, problem, forms, stream, beside)));
}

}  // namespace flashmask::cuda
