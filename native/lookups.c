// SPDX-License-Identifier: Apache-2.0
/* Counters of rows, and the lookups that a calibration counts and holds out; see loops.h. */
#include "loops.h"

#define AHEAD 48 /* ids whose rows are fetched before they are needed */
#define LOW 256	 /* counts that most rows are below */

/* Whether every id is below `rows`, and none below zero: told by the sign of all together. */
static int are_rows(const int64_t *ids, int64_t count, int64_t rows)
{
	uint64_t wrong = 0;

	for (int64_t i = 0; i < count; i++)
		wrong |= (uint64_t)ids[i] | ((uint64_t)rows - 1 - (uint64_t)ids[i]);
	return !(wrong >> 63);
}

/* access/dense.py: a lookup more for each id, or for those at some places; how many are no rows,
 * or -1 if a place is not there.
 */
EXPORT int64_t trainobs_count(const int64_t *ids, int64_t id_count, const int64_t *places,
			      int64_t count, uint32_t *counters, int64_t rows)
{
	int64_t outside = 0;

	for (int64_t i = 0; i < count; i++)
		if (places && (places[i] < 0 || places[i] >= id_count))
			return -1;
	for (int64_t i = 0; i < count; i++) {
		int64_t ahead = i + AHEAD < count ? i + AHEAD : i;
		uint64_t id = ids[places ? places[i] : i];
		uint64_t next = ids[places ? places[ahead] : ahead];

		if (next < (uint64_t)rows)
			__builtin_prefetch(counters + next, 1);
		if (id < (uint64_t)rows)
			counters[id]++;
		else
			outside++;
	}
	return outside;
}

/* access/spectrum.py, histogram: add to `rows` how many there are of each count below `limit`, which
 * is no less than LOW; how many are not below it.
 */
EXPORT int64_t trainobs_histogram(const uint32_t *counts, int64_t count, int64_t *rows,
				  int64_t limit)
{
	/* Neighbours are equal, mostly zero: in one table each would wait for the one before. */
	int64_t low[8][LOW] = { { 0 } }, others = 0;

	for (int64_t i = 0; i < count; i++) {
		if (counts[i] < LOW)
			low[i % 8][counts[i]]++;
		else if (counts[i] < limit)
			rows[counts[i]]++;
		else
			others++;
	}
	for (int64_t i = 0; i < 8 * LOW; i++)
		rows[i % LOW] += low[i / LOW][i % LOW];
	return others;
}

/* access/ranking.py, HotLimit.rows: those with at least `least` lookups, and the first `more` of
 * those with just `partly`; how many these are, of which no more than `room` are written.
 */
EXPORT int64_t trainobs_hot(const uint32_t *counts, int64_t count, uint64_t least, uint64_t partly,
			    int64_t more, int64_t *ids, int64_t room)
{
	int64_t found = 0;

	for (int64_t i = 0; i < count; i++) {
		int is_partly = counts[i] == partly && more > 0;

		more -= is_partly;
		if (found < room)
			ids[found] = i; /* or the next is written over it: no branch on chance */
		found += counts[i] >= least || is_partly;
	}
	return found;
}

/* access/members.py: set the bit of each of some rows. */
EXPORT int64_t trainobs_set_bits(const int64_t *ids, int64_t count, uint8_t *bits, int64_t rows)
{
	for (int64_t i = 0; i < count; i++) {
		if ((uint64_t)ids[i] >= (uint64_t)rows)
			return -1;
		bits[ids[i] / 8] |= 1 << ids[i] % 8;
	}
	return 0;
}

/* access/members.py: whether the bit of each id's row is set. */
EXPORT int64_t trainobs_are_set(const int64_t *ids, int64_t count, const uint8_t *bits,
				int64_t rows, uint8_t *are)
{
	for (int64_t i = 0; i < count; i++) {
		uint64_t id = ids[i];

		if (id >= (uint64_t)rows)
			return -1;
		are[i] = bits[id / 8] >> id % 8 & 1;
	}
	return 0;
}

/* access/members.py, counts_at: the count of each id's row. */
EXPORT int64_t trainobs_counts(const int64_t *ids, int64_t count, const uint32_t *counts,
			       int64_t rows, uint32_t *found)
{
	for (int64_t i = 0; i < count; i++) {
		uint64_t id = ids[i], next = ids[i + AHEAD < count ? i + AHEAD : i];

		if (next < (uint64_t)rows)
			__builtin_prefetch(counts + next);
		if (id >= (uint64_t)rows)
			return -1;
		found[i] = counts[id];
	}
	return 0;
}

/* fae/calibration/input_selection.py: lookups of the inputs of several batches. */
struct batches {
	int64_t batch_count, feature_count;
	const int64_t *sizes;	       /* inputs of each batch */
	const int64_t *rows;	       /* that ids of each feature are among */
	const int64_t *const *ids;     /* of each batch and feature */
	const int64_t *id_counts;      /* as many */
	const int64_t *const *lengths; /* of inputs; NULL: each has one lookup */
};

/* Some of these inputs, and where their ids are to be, those of a feature behind each other. */
struct taking {
	const int64_t *places; /* among the inputs of all batches, ascending */
	const int64_t *ends;   /* of each batch: places in it and before it */
	int64_t *ids;
	int64_t count, room, taken; /* of places; of ids; ids that are there, counted here */
};

/* Whether the places are in the batches that they are said to be in. */
static int are_places(const struct batches *batches, const struct taking *taking)
{
	int64_t at = 0, first = 0;

	for (int64_t batch = 0; batch < batches->batch_count; batch++) {
		int64_t end = first + batches->sizes[batch];

		if (taking->ends[batch] < at || taking->ends[batch] > taking->count)
			return 0;
		for (; at < taking->ends[batch]; at++)
			if (taking->places[at] < first || taking->places[at] >= end ||
			    (at && taking->places[at] < taking->places[at - 1]))
				return 0;
		first = end;
	}
	return 1;
}

/* The lookups of the inputs at `count` places, after `first` inputs of other batches: how many, or
 * -1 where they are not all there, or there is no room for them.
 */
static int64_t take_bags(const int64_t *ids, int64_t id_count, const int64_t *lengths,
			 const int64_t *places, int64_t count, int64_t first, int64_t *to,
			 int64_t room)
{
	int64_t input = 0, from = 0, taken = 0;

	for (int64_t i = 0; i < count; i++) {
		for (; input < places[i] - first; input++) {
			if (lengths[input] < 0 || lengths[input] > id_count - from)
				return -1;
			from += lengths[input];
		}
		if (lengths[input] < 0 || lengths[input] > id_count - from ||
		    lengths[input] > room - taken)
			return -1;
		for (int64_t j = 0; j < lengths[input]; j++)
			to[taken++] = ids[from + j];
	}
	return taken;
}

/* The same of inputs with one lookup each. */
static int64_t take_ids(const int64_t *ids, const int64_t *places, int64_t count, int64_t first,
			int64_t *to, int64_t room)
{
	if (count > room)
		return -1;
	for (int64_t i = 0; i < count; i++)
		to[i] = ids[places[i] - first];
	return count;
}

/* Of a feature and a batch, whose first input is `first`. */
static int take_batch(const struct batches *batches, int64_t feature, int64_t batch, int64_t first,
		      struct taking *taking)
{
	int64_t number = batch * batches->feature_count + feature, taken;
	int64_t begin = batch ? taking->ends[batch - 1] : 0, count = taking->ends[batch] - begin;
	const int64_t *ids = batches->ids[number], *lengths = batches->lengths[number];
	int64_t *to = taking->ids + taking->taken, room = taking->room - taking->taken;

	taken = lengths ? take_bags(ids, batches->id_counts[number], lengths,
				    taking->places + begin, count, first, to, room) :
			  take_ids(ids, taking->places + begin, count, first, to, room);
	if (taken > 0)
		taking->taken += taken;
	return taken >= 0;
}

/* parted: check all ids, and write down those of some inputs, or of several choices of inputs. */
EXPORT int64_t trainobs_take(const struct batches *batches, struct taking *takings, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		if (!are_places(batches, takings + i))
			return -1;
	for (int64_t feature = 0; feature < batches->feature_count; feature++) {
		int64_t first = 0;

		for (int64_t batch = 0; batch < batches->batch_count; batch++) {
			int64_t number = batch * batches->feature_count + feature;
			int64_t size = batches->sizes[batch], id_count = batches->id_counts[number];

			if (!batches->lengths[number] && id_count != size)
				return -1;
			if (!are_rows(batches->ids[number], id_count, batches->rows[feature]))
				return -1;
			for (int64_t i = 0; i < count; i++)
				if (!take_batch(batches, feature, batch, first, takings + i))
					return -1;
			first += size;
		}
	}
	return 0;
}
