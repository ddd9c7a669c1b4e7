// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <string>

#include "cuda/compile/change_text.h"
#include "emulator/changes/changes.h"
#include "kit/host_tensor.h"

using namespace flashmask;

/// Writes the text of each change in kEmulatedChanges into a namespace of its own, for each dtype and for a batch of
/// one and of two, whose tensors have other forms; ChangeOf<number, dtype, whether of two> says which is which.
int main(int, char** arguments) {
  std::ofstream to(arguments[1]);
  to << "template <int kNumber, class T, bool kBatch>\nstruct ChangeOf;\n";
  int number = 0;
  for (const char* text : test::kEmulatedChanges) {
    for (const bool batch : {false, true})
      for (const DType dtype : {DType::bf16, DType::f16}) {
        Problem problem{.batch = batch ? 2 : 1, .query_length = 2, .key_length = 8, .query_heads = 2, .kv_heads = 2};
        problem.head_dim = problem.value_dim = 16;
        problem.dtype = dtype;
        problem.change = ScoreChange::parse(text);
        const check::AttentionTensors tensors(problem, 1);
        const ForwardTensors given = tensors.forward();
        const std::string written = cuda::compile::change_text(
            problem.change, cuda::compile::forms_of(problem.change, cuda::compile::change_tensors(given)));
        const std::string name =
            "change" + std::to_string(number) + (batch ? "_two_" : "_one_") + (dtype == DType::f16 ? "f16" : "bf16");
        to << "namespace " << name << " {\n"
           << written << "}\ntemplate <>\nstruct ChangeOf<" << number << ", "
           << (dtype == DType::f16 ? "__half" : "__nv_bfloat16") << ", " << (batch ? "true" : "false")
           << "> {\n  using Change = " << name << "::Change;\n  static constexpr const char* kText = R\"text("
           << written << ")text\";\n};\n";
      }
    ++number;
  }
}
