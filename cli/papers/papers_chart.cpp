// SPDX-License-Identifier: Apache-2.0
#include "cli/papers/papers_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "cli/base/quantities.h"
#include "cli/pictures/layout.h"
#include "cli/pictures/png_canvas.h"
#include "cli/pictures/svg_canvas.h"

namespace flashmask::cli {
namespace {

constexpr Rgb kRule{226, 229, 234};

constexpr std::array<Rgb, 10> kColours{{{0, 114, 178},
                                        {213, 94, 0},
                                        {0, 140, 100},
                                        {170, 80, 140},
                                        {176, 124, 0},
                                        {60, 160, 215},
                                        {95, 95, 95},
                                        {200, 30, 60},
                                        {100, 70, 190},
                                        {0, 0, 0}}};

constexpr std::int64_t kPlotWidth = 760;
constexpr std::int64_t kPlotHeight = 520;
constexpr std::int64_t kLeft = 96;
constexpr std::int64_t kTop = 80;
constexpr std::int64_t kBottom = 80;
constexpr std::int64_t kGap = 16;
constexpr std::int64_t kLabelStep = 22;  ///< least distance from one name to the next

double fraction(double value, double least, double most) {
  return least == most ? 0.5 : std::log(value / least) / std::log(most / least);
}

/// 1, 2 and 5 times powers of ten.
std::vector<double> ticks(double least, double most) {
  std::vector<double> found;
  const int last = static_cast<int>(std::floor(std::log10(most)));
  for (int exponent = static_cast<int>(std::floor(std::log10(least))); exponent <= last; ++exponent) {
    const double power = std::pow(10, exponent);
    for (const double step : {1.0, 2.0, 5.0}) {
      if (power * step >= least && power * step <= most) found.push_back(power * step);
    }
  }
  return found;
}

std::string label_of(const SpeedupLine& line) { return line.name + (line.reordered ? ", reordered" : ""); }

std::int64_t text_width(const std::string& text) { return static_cast<std::int64_t>(text.size()) * kCharacterWidth; }

}  // namespace

SpeedupChart::SpeedupChart(std::string title, std::vector<SpeedupLine> lines)
    : title_(std::move(title)), lines_(std::move(lines)) {
  for (const SpeedupLine& line : lines_) {
    if (std::find(names_.begin(), names_.end(), line.name) == names_.end()) names_.push_back(line.name);
    for (const SpeedupLine::Sample& sample : line.samples) {
      least_tokens_ = std::min(least_tokens_, static_cast<double>(sample.tokens));
      most_tokens_ = std::max(most_tokens_, static_cast<double>(sample.tokens));
      least_ = std::min(least_, sample.speedup);
      most_ = std::max(most_, sample.speedup);
    }
  }
  std::stable_sort(lines_.begin(), lines_.end(), [](const SpeedupLine& a, const SpeedupLine& b) {
    return a.samples.back().speedup > b.samples.back().speedup;
  });
}

Point SpeedupChart::place(SpeedupLine::Sample sample) const {
  const double x = fraction(static_cast<double>(sample.tokens), least_tokens_, most_tokens_);
  const double y = fraction(sample.speedup, least_, most_);
  return {kLeft + std::lround(x * kPlotWidth), kTop + kPlotHeight - std::lround(y * kPlotHeight)};
}

void SpeedupChart::draw_axes(Canvas& canvas) const {
  for (const double tick : ticks(least_, most_)) {
    const std::int64_t y = place({static_cast<std::int64_t>(least_tokens_), tick}).y;
    const std::string text = significant(tick);
    canvas.fill({kLeft, y, kPlotWidth, 1}, tick == 1 ? kFaintInk : kRule);
    // "10.0" says no more than "10".
    const std::string label = tick >= 1 ? std::to_string(std::lround(tick)) : text;
    canvas.write(kLeft - kGap - text_width(label), y - kTextHeight / 2, label, kFaintInk);
  }
  std::set<std::int64_t> tokens;
  for (const SpeedupLine& line : lines_) {
    for (const SpeedupLine::Sample& sample : line.samples) tokens.insert(sample.tokens);
  }
  for (const std::int64_t number : tokens) {
    const std::int64_t x = place({number, least_}).x;
    const std::string label = with_commas(number);
    canvas.fill({x, kTop, 1, kPlotHeight}, kRule);
    canvas.write(x - text_width(label) / 2, kTop + kPlotHeight + kGap / 2, label, kFaintInk);
  }
  canvas.write(kLeft + kPlotWidth / 2 - text_width("tokens") / 2, kTop + kPlotHeight + 2 * kGap + 4, "tokens", kInk);
}

Rgb SpeedupChart::colour_of(const SpeedupLine& line) const {
  const auto name = std::find(names_.begin(), names_.end(), line.name);
  return kColours[static_cast<std::size_t>(name - names_.begin()) % kColours.size()];
}

void SpeedupChart::draw_line(Canvas& canvas, const SpeedupLine& line) const {
  constexpr std::int64_t kDot = 9, kHole = 5;
  const Rgb colour = colour_of(line);
  const auto square = [&](Point at, std::int64_t side, Rgb filling) {
    canvas.fill({at.x - side / 2, at.y - side / 2, side, side}, filling);
  };
  for (std::size_t i = 1; i < line.samples.size(); ++i) {
    canvas.line(place(line.samples[i - 1]), place(line.samples[i]), colour);
  }
  for (const SpeedupLine::Sample& sample : line.samples) {
    square(place(sample), kDot, colour);
    if (line.reordered) square(place(sample), kHole, kPaper);
  }
}

/// Where each name is written: beside the end of its line, or lower if another name is there.
std::vector<std::int64_t> SpeedupChart::label_tops() const {
  std::vector<std::int64_t> tops;
  for (const SpeedupLine& line : lines_) {
    const std::int64_t wanted = place(line.samples.back()).y - kTextHeight / 2;
    tops.push_back(tops.empty() ? wanted : std::max(wanted, tops.back() + kLabelStep));
  }
  // Names that were pushed out of the plot push the others back up.
  std::int64_t lowest = kTop + kPlotHeight;
  for (std::size_t i = tops.size(); i-- > 0;) {
    tops[i] = std::min(tops[i], lowest);
    lowest = tops[i] - kLabelStep;
  }
  return tops;
}

std::int64_t SpeedupChart::width() const {
  std::int64_t names = 0;
  for (const SpeedupLine& line : lines_) names = std::max(names, text_width(label_of(line)));
  return std::max(kLeft + kPlotWidth + 3 * kGap + names, 2 * kGap + text_width(title_));
}

void SpeedupChart::draw(Canvas& canvas) const {
  canvas.fill({0, 0, width(), kTop + kPlotHeight + kBottom}, kPaper);
  canvas.write(kGap, kGap, title_, kInk);
  draw_axes(canvas);
  const std::vector<std::int64_t> tops = label_tops();
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    draw_line(canvas, lines_[i]);
    canvas.write(kLeft + kPlotWidth + 2 * kGap, tops[i], label_of(lines_[i]), colour_of(lines_[i]));
  }
}

std::string SpeedupChart::png() const {
  PngCanvas canvas(width(), kTop + kPlotHeight + kBottom);
  draw(canvas);
  return canvas.encode();
}

std::string SpeedupChart::svg() const {
  SvgCanvas canvas(width(), kTop + kPlotHeight + kBottom);
  draw(canvas);
  return canvas.encode();
}

}  // namespace flashmask::cli
