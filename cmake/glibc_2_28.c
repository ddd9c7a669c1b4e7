// SPDX-License-Identifier: Apache-2.0
/* What the C++ runtime that scripts/wheel links in asks of a glibc newer than 2.28, from which wheels run. */
#include <stdlib.h>
#include <sys/random.h>

/* Since 2.32 says whether counters may skip their locks: never. */
char __libc_single_threaded = 0;

/* Since 2.36: std::random_device draws from it, which only the runtime's own code does. */
unsigned arc4random(void) {
  unsigned number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number) {
    abort();
  }
  return number;
}
