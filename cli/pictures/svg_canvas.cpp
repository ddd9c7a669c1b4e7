// SPDX-License-Identifier: Apache-2.0
#include "cli/pictures/svg_canvas.h"

#include <array>
#include <cstdio>

namespace flashmask::cli {
namespace {

std::string attribute(const char* name, std::int64_t value) {
  return std::string(" ") + name + "=\"" + std::to_string(value) + "\"";
}

std::string colour_attribute(const char* name, Rgb colour) {
  std::array<char, 8> hex{};
  std::snprintf(hex.data(), hex.size(), "#%02x%02x%02x", colour.red, colour.green, colour.blue);
  return std::string(" ") + name + "=\"" + hex.data() + "\"";
}

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    safe += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  }
  return safe;
}

}  // namespace

SvgCanvas::SvgCanvas(std::int64_t width, std::int64_t height)
    : text_("<svg xmlns=\"http://www.w3.org/2000/svg\"" + attribute("width", width) + attribute("height", height) +
            " viewBox=\"0 0 " + std::to_string(width) + " " + std::to_string(height) +
            "\" shape-rendering=\"crispEdges\" font-family=\"ui-monospace, Menlo, Consolas, monospace\" "
            "font-size=\"15\">\n") {}

void SvgCanvas::fill(const Rectangle& where, Rgb colour) {
  text_ += "<rect" + attribute("x", where.x) + attribute("y", where.y) + attribute("width", where.width) +
           attribute("height", where.height) + colour_attribute("fill", colour) + "/>\n";
}

void SvgCanvas::write(std::int64_t x, std::int64_t y, const std::string& text, Rgb colour, TextDirection direction) {
  constexpr std::int64_t kBaseline = 14;  // below the top of the box
  const std::string place = direction == TextDirection::right
                                ? attribute("x", x) + attribute("y", y + kBaseline)
                                : " transform=\"translate(" + std::to_string(x + kTextHeight - kBaseline) + " " +
                                      std::to_string(y) + ") rotate(90)\"";
  text_ += "<text" + place + colour_attribute("fill", colour) + ">" + escaped(text) + "</text>\n";
}

}  // namespace flashmask::cli
