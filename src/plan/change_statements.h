// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/change_nodes.h"

namespace flashmask {

/// Returns what kernels call a dtype.
std::string name_of(DType dtype);

/// Writes values of a function as C++ statements, each once, with numbers multiplied into what costs least.
class ChangeStatements {
 public:
  /// biased: the text is given the value of the bias, as `bias`.
  ChangeStatements(const ChangeNodes& nodes, std::vector<ChangeNumber>& numbers, bool biased)
      : nodes_(nodes), numbers_(numbers), biased_(biased) {}

  /// Writes what a value takes, and returns its product with a number as a float expression.
  std::string scaled(int at, const ChangeNumber& by);
  const std::string& text() const { return text_; }

 private:
  using Core = ChangeNodes::Core;

  std::string named(const char* type, const std::string& value);
  std::string number(const ChangeNumber& value);

  std::string product_of(std::vector<Core> cores, const ChangeNumber& by);
  std::string times(const ChangeNumber& by, const Core& core);
  std::string core(const Core& of);
  std::string written_core(const Core& of);
  std::string terms(int at, const ChangeNumber& by);
  std::string capped(int at, const ChangeNumber& by, const ChangeNumber& added);
  std::string capped_sum(const ScoreNode& of, const ChangeNumber& by);
  std::string operation(int at);

  std::string condition(int at);
  std::string written_condition(int at);
  std::string compared(const ScoreNode& of);

  std::string whole(int at);
  std::string written_whole(const ScoreNode& of);
  std::string float_of_whole(int at);

  std::string read(const ScoreNode& of);
  std::string index(int at);
  std::string entry(int tensor) const;
  std::string step(int tensor, int axis, bool is_last, Varies varies, const std::string& index) const;
  std::string bias();
  std::string distance();
  std::string way();

  const ChangeNodes& nodes_;
  std::vector<ChangeNumber>& numbers_;
  const bool biased_;
  std::vector<std::tuple<int, ChangeNumber, std::string>> scaled_;
  std::map<std::pair<Core::Kind, int>, std::string> cores_;
  std::map<int, std::string> powers_, conditions_, wholes_;
  std::string text_;
  int count_ = 0;
};

}  // namespace flashmask
