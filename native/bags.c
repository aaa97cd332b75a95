// SPDX-License-Identifier: Apache-2.0
/* The bags of a window that is packed; see loops.h. */
#include "loops.h"

/* Number `at` of an array of int64, or of int32. */
INLINED int64_t read(const void *numbers, int64_t at, int wide)
{
	return wide ? ((const int64_t *)numbers)[at] : ((const int32_t *)numbers)[at];
}

INLINED void write(void *numbers, int64_t at, int64_t value, int wide)
{
	if (wide)
		((int64_t *)numbers)[at] = value;
	else
		((int32_t *)numbers)[at] = (int32_t)value;
}

/* fae/packing/pool.py, BagPool: bags of several batches, those of a key behind each other. */
struct bags {
	int64_t key_count, input_count, value_count;
	const void *lengths;   /* of bags */
	const int64_t *starts; /* of bags, among the values; NULL: bag N is value N alone */
	const void *ids;
	const int32_t *slots; /* NULL: all lookups are cold */
	const char *weights;  /* or NULL */
	int64_t weight_bytes; /* of a value */
	int32_t wide_lengths, wide_ids;
};

/* Some of their inputs, and where their lookups are to be: cold ones, and hot ones behind them. */
struct parts {
	int64_t input_count, value_count, hot_key_count;
	const int64_t *inputs;
	const int64_t *hot_keys; /* by key; -1: it has none, all its lookups are cold */
	void *lengths, *ids;
	char *weights;
	int64_t *key_lengths;
};

/* Whether all of a bag is there; `single`: `starts` is NULL. */
INLINED int find_bag(const struct bags *bags, int64_t bag, int single, int wide, int64_t *start,
		     int64_t *end)
{
	int64_t length = single ? 1 : read(bags->lengths, bag, wide);

	*start = single ? bag : bags->starts[bag];
	if (*start < 0 || length < 0 || length > bags->value_count - *start)
		return 0;
	*end = *start + length;
	return 1;
}

/* Which loop a compiler is to make, of constants: it makes one for each. */
struct kind {
	int hot, single, wide_ids, wide_lengths;
};

INLINED void put(const struct bags *bags, const struct parts *parts, int64_t from, int64_t to,
		 struct kind kind)
{
	size_t width = bags->weight_bytes;

	write(parts->ids, to, kind.hot ? bags->slots[from] : read(bags->ids, from, kind.wide_ids),
	      kind.wide_ids);
	if (bags->weights)
		memcpy(parts->weights + to * width, bags->weights + from * width, width);
}

/* The hot lookups of a key, or the cold ones. `to`: values before them; how many are behind them,
 * those left out for which there is no room; -1: a bag is not there.
 */
INLINED int64_t take(const struct bags *bags, const struct parts *parts, int64_t key, int64_t to,
		     struct kind kind)
{
	int64_t hot_key = parts->hot_keys[key], row = kind.hot ? bags->key_count + hot_key : key;

	for (int64_t i = 0; i < parts->input_count; i++) {
		int64_t bag = key * bags->input_count + parts->inputs[i], first = to, from, end;

		if (!find_bag(bags, bag, kind.single, kind.wide_lengths, &from, &end))
			return -1;
		for (; from < end; from++) {
			int is_hot = hot_key >= 0 && bags->slots[from] >= 0;

			if (to < parts->value_count)
				put(bags, parts, from, to, kind);
			to += is_hot == kind.hot; /* or the next one is written over it */
		}
		write(parts->lengths, row * parts->input_count + i, to - first, kind.wide_lengths);
	}
	return to;
}

INLINED int64_t part(const struct bags *bags, const struct parts *parts, int single, int wide_ids,
		     int wide_lengths)
{
	int64_t at = 0;

	for (int64_t key = 0; key < bags->key_count; key++) {
		int64_t before = at;

		at = take(bags, parts, key, at, (struct kind){ 0, single, wide_ids, wide_lengths });
		if (at < 0)
			return -1;
		parts->key_lengths[key] = at - before;
	}
	for (int64_t key = 0; key < bags->key_count; key++) {
		int64_t before = at;

		if (parts->hot_keys[key] < 0)
			continue;
		at = take(bags, parts, key, at, (struct kind){ 1, single, wide_ids, wide_lengths });
		if (at < 0)
			return -1;
		parts->key_lengths[bags->key_count + parts->hot_keys[key]] = at - before;
	}
	return at;
}

/* Whether nothing in `parts` names what is not there. */
static int is_sound(const struct bags *bags, const struct parts *parts)
{
	for (int64_t i = 0; i < parts->input_count; i++)
		if (parts->inputs[i] < 0 || parts->inputs[i] >= bags->input_count)
			return 0;
	for (int64_t key = 0; key < bags->key_count; key++)
		if (parts->hot_keys[key] >= parts->hot_key_count ||
		    (parts->hot_keys[key] >= 0 && bags->value_count && !bags->slots))
			return 0;
	return 1;
}

/* BagPool.put: how many values these inputs have; those that there is no room for are left out.
 * The copies are such that nothing written can change: what is in them stays in registers.
 */
EXPORT int64_t trainobs_part(const struct bags *from, const struct parts *to)
{
	const struct bags bags = *from;
	const struct parts parts = *to;

	if (!is_sound(&bags, &parts))
		return -1;
	switch (!bags.starts << 2 | bags.wide_ids << 1 | bags.wide_lengths) {
	case 0:
		return part(&bags, &parts, 0, 0, 0);
	case 1:
		return part(&bags, &parts, 0, 0, 1);
	case 2:
		return part(&bags, &parts, 0, 1, 0);
	case 3:
		return part(&bags, &parts, 0, 1, 1);
	case 4:
		return part(&bags, &parts, 1, 0, 0);
	case 5:
		return part(&bags, &parts, 1, 0, 1);
	case 6:
		return part(&bags, &parts, 1, 1, 0);
	case 7:
		return part(&bags, &parts, 1, 1, 1);
	}
	return -1;
}

INLINED int64_t all_hot(const struct bags *bags, int64_t key, uint8_t *restrict is_hot, int single)
{
	for (int64_t i = 0; i < bags->input_count; i++) {
		int64_t bag = key * bags->input_count + i, from, end;

		if (!find_bag(bags, bag, single, bags->wide_lengths, &from, &end))
			return -1;
		for (; from < end; from++)
			is_hot[i] &= bags->slots[from] >= 0;
	}
	return 0;
}

/* BagPool.all_hot: clear what is set for each input with a cold lookup in this key. */
EXPORT int64_t trainobs_all_hot(const struct bags *of, int64_t key, uint8_t *is_hot)
{
	const struct bags bags = *of;

	if (key < 0 || key >= bags.key_count)
		return -1;
	return bags.starts ? all_hot(&bags, key, is_hot, 0) : all_hot(&bags, key, is_hot, 1);
}
