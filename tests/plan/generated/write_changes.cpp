// SPDX-License-Identifier: Apache-2.0
#include <fstream>

#include "plan/generate_change.h"
#include "plan/score_functions.h"

/// Writes the text of each change in kScoreFunctions into a namespace of its own, and a table of them.
int main(int, char** arguments) {
  std::ofstream to(arguments[1]);
  int count = 0;
  for (const char* text : flashmask::test::kScoreFunctions)
    to << "namespace change" << count++ << " {\n"
       << flashmask::generate_change(flashmask::ScoreChange::parse(text)).text << "}\n";
  to << "constexpr Computed (*kComputed[])(const ChangeOperands&, const Asked&) = {";
  for (int i = 0; i < count; ++i) to << "computed<change" << i << "::Change>, ";
  to << "};\n";
}
