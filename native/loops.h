// SPDX-License-Identifier: Apache-2.0
/* Loops over lookups of embedding rows, and over the kernel's rows of steps, called by way of
 * src/trainobs/core/native.py, without the interpreter's lock. Above each is named what calls it,
 * whose reference in Python says what it does. Arrays lie densely; no number in them is trusted as a
 * place in another one. What is wrong is told by -1, and what was written until then is to be
 * thrown away.
 */
#ifndef TRAINOBS_LOOPS_H
#define TRAINOBS_LOOPS_H

#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define INLINED static inline __attribute__((always_inline))

#endif
