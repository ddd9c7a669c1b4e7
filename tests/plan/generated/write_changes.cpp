// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <iterator>
#include <string>

#include "plan/generate_change.h"
#include "plan/generated/operand_forms.h"
#include "plan/score_functions.h"

/// Writes the text of each change in kScoreFunctions for operands of either form into namespaces of their own, and a
/// table of them.
int main(int, char** arguments) {
  using flashmask::test::kOperandForms;
  std::ofstream to(arguments[1]);
  std::string table;
  int count = 0;
  for (const char* text : flashmask::test::kScoreFunctions) {
    table += "{";
    for (const flashmask::TensorForms& forms : kOperandForms) {
      const std::string name = "change" + std::to_string(count++);
      to << "namespace " << name << " {\n"
         << flashmask::generate_change(flashmask::ScoreChange::parse(text), forms).text << "}\n";
      table += "computed<" + name + "::Change>, ";
    }
    table += "}, ";
  }
  to << "constexpr Computed (*kComputed[][" << std::size(kOperandForms) << "])(const ChangeOperands&, const Asked&) = {"
     << table << "};\n";
}
