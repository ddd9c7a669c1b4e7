// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/command.h"

int main(int argc, char** argv) {
  flashmask::cli::Console console = flashmask::cli::standard_console();
  return flashmask::cli::run({argv + 1, argv + argc}, console);
}
