// SPDX-License-Identifier: Apache-2.0
/* Rows of steps in the kernel's memory; see loops.h. */
#include "loops.h"

#define AHEAD 4 /* cells that are fetched before they are needed */

/* Cells of a slot, of `words` numbers each, at some places in it. */
struct row {
	const uint64_t *slot;
	const int64_t *places;
	int64_t count, words;
};

static const uint64_t *cell_of(const struct row *row, int64_t at)
{
	if (at + AHEAD < row->count)
		__builtin_prefetch(row->slot + row->places[at + AHEAD] * row->words);
	return row->slot + row->places[at] * row->words;
}

static int are_below(const int64_t *numbers, int64_t count, int64_t limit)
{
	for (int64_t i = 0; i < count; i++)
		if (numbers[i] < 0 || numbers[i] >= limit)
			return 0;
	return 1;
}

/* steps/ring.py: how much cells of `taken` slots grew since they were seen, which is noted; then, of
 * `resting` slots, how much the first numbers of their cells grew in all. A row is of `cells` cells.
 */
EXPORT int64_t trainobs_grown(const uint64_t *rows, int64_t row_count, int64_t cells, int64_t words,
			      const int64_t *places, int64_t count, const int64_t *slots,
			      int64_t taken, int64_t resting, uint64_t *seen, uint64_t *grown,
			      uint64_t *late)
{
	struct row row = { .places = places, .count = count, .words = words };

	if (!are_below(places, count, cells) || !are_below(slots, taken + resting, row_count))
		return -1;
	/* First, since a slot may be among those taken, too. */
	for (int64_t i = taken; i < taken + resting; i++) {
		const uint64_t *was = seen + slots[i] * count * words;
		uint64_t sum = 0;

		row.slot = rows + slots[i] * cells * words;
		for (int64_t at = 0; at < count; at++)
			sum += __atomic_load_n(cell_of(&row, at), __ATOMIC_RELAXED) -
			       was[at * words];
		*late++ = sum;
	}
	for (int64_t i = 0; i < taken; i++) {
		uint64_t *was = seen + slots[i] * count * words;

		row.slot = rows + slots[i] * cells * words;
		for (int64_t at = 0; at < count; at++) {
			const uint64_t *cell = cell_of(&row, at);

			for (int64_t word = 0; word < words; word++, was++) {
				/* Once, and as a whole: the kernel adds to it. */
				uint64_t now = __atomic_load_n(cell + word, __ATOMIC_RELAXED);

				*grown++ = now - *was;
				*was = now;
			}
		}
	}
	return 0;
}
