#include "mask/check.h"

#include <limits>

#include "flashmask/error.h"

namespace flashmask {

std::string grouped(std::int64_t value) {
  const std::string digits = std::to_string(value);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const bool separate = i > 0 && digits[i - 1] != '-' && (digits.size() - i) % 3 == 0;
    if (separate) text += ',';
    text += digits[i];
  }
  return text;
}

std::string counted(std::size_t count, const std::string& noun) {
  return grouped(static_cast<std::int64_t>(count)) + " " + noun + (count == 1 ? "" : "s");
}

void refuse(const std::string& message) { throw Error(Status::invalid_argument, message); }

void check_size(const std::string& function, const std::string& argument, std::int64_t value) {
  if (value < 0 || value > std::numeric_limits<std::int32_t>::max()) {
    refuse(function + ": " + argument + " is " + grouped(value) + "; give a size from 0 to 2,147,483,647 (2^31 - 1)");
  }
}

}  // namespace flashmask
