// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "flashmask/score_change.h"
#include "plan/change_number.h"
#include "plan/generate_change.h"

namespace flashmask {

/// What a value depends on. Kernels compute values of all but the last kind once for many scores: compilers see that
/// they are the same.
enum class Varies : std::uint8_t { never, by_row, by_column, by_distance, by_score };

/// The nodes of a function as their text is made of them.
class ChangeNodes {
 public:
  /// A whole number, q · row + k · column + number.
  struct Place {
    bool known = false;
    std::int64_t q = 0, k = 0, number = 0;
    bool is(int of_q, int of_k) const { return known && q == of_q && k == of_k; }
    bool is_distance() const { return is(1, -1) || is(-1, 1); }
  };
  /// A factor of a value: a node, or what is made of it.
  struct Core {
    enum Kind : std::uint8_t {
      value,       ///< the node
      bare,        ///< the node, a product, without its number
      size,        ///< the node's absolute value
      reciprocal,  ///< one by the node
      slope,       ///< what ALiBi has for the head
      way,         ///< the distance that ALiBi takes
    } kind;
    int node;
  };
  /// A value as a number times cores.
  struct Product {
    ChangeNumber number = {};
    std::vector<Core> cores = {};
  };

  ChangeNodes(const ScoreFunction& function, ScoreBias bias, const TensorForms& forms);

  ScoreBias bias() const { return bias_; }
  int bias_tensor() const { return bias_tensor_; }
  const TensorForm& form(int tensor) const { return forms_[index(tensor)]; }

  const ScoreNode& node(int at) const { return nodes_[index(at)]; }
  bool is_number(int at) const { return node(at).op == ScoreOp::number; }
  /// Whether a value is computed as an int: whole numbers of places, as long as they stay small.
  bool is_whole(int at) const { return whole_[index(at)]; }
  /// Whether a value is a quotient of whole numbers, the second one above 0, whose floor is Python's //.
  bool is_quotient(int at) const;
  const Place& place(int at) const { return places_[index(at)]; }
  /// The difference of two places.
  Place apart(int a, int b) const;
  Varies varies(int at) const { return varies_[index(at)]; }
  Varies varies(const Core& core) const;
  const Product& product(int at) const { return products_[index(at)]; }
  /// Whether a node is a sum or the like, which a number may be multiplied into.
  bool has_terms(int at) const;
  bool has_terms(const Core& core) const { return core.kind == Core::value && has_terms(core.node); }
  /// How many multiplications per score it takes to multiply a value, or the terms of one, by a number.
  int cost(const Core& core) const;
  int cost_of_terms(int at) const;

 private:
  static std::size_t index(int at) { return static_cast<std::size_t>(at); }
  void count_uses(const ScoreFunction& function);
  bool find_whole(const ScoreNode& of) const;
  bool is_small(int at) const;
  Place find_place(int at) const;
  Varies find_varies(int at) const;
  Varies find_varies_of_bias(const ScoreNode& of) const;
  Product find_product(int at) const;
  void join(Product& product, int with) const;
  int find_cost(int at) const;

  std::span<const ScoreNode> nodes_;
  ScoreBias bias_;
  int bias_tensor_;
  TensorForms forms_;
  std::vector<int> uses_, costs_;
  std::vector<bool> whole_;
  std::vector<Place> places_;
  std::vector<Varies> varies_;
  std::vector<Product> products_;
};

}  // namespace flashmask
