// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "cli/pictures/canvas.h"

namespace flashmask::cli {

/// One line of the chart: how many times faster than the unmasked run a mask is, over the number of tokens.
struct SpeedupLine {
  struct Sample {
    std::int64_t tokens = 0;
    double speedup = 0;
  };
  std::string name;
  bool reordered = false;       ///< the mask of that name with its tokens reordered
  std::vector<Sample> samples;  ///< tokens ascend
};

/// A chart of such lines, both axes logarithmic, each line named at its right end. Lines with the same name share a
/// colour.
class SpeedupChart {
 public:
  /// There is at least one sample; tokens and speedups are positive.
  SpeedupChart(std::string title, std::vector<SpeedupLine> lines);

  std::string png() const;
  std::string svg() const;

 private:
  void draw(Canvas& canvas) const;
  void draw_axes(Canvas& canvas) const;
  void draw_line(Canvas& canvas, const SpeedupLine& line) const;
  Rgb colour_of(const SpeedupLine& line) const;
  std::vector<std::int64_t> label_tops() const;
  std::int64_t width() const;

  Point place(SpeedupLine::Sample sample) const;

  std::string title_;
  std::vector<std::string> names_;
  std::vector<SpeedupLine> lines_;  ///< the line that ends highest comes first
  double least_tokens_ = std::numeric_limits<double>::infinity(), most_tokens_ = 0;
  double least_ = 1, most_ = 1;
};

}  // namespace flashmask::cli
