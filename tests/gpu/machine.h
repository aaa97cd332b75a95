/* The machine behind the stand-in for NVML: its table of numbers, its handles, its log of calls.
 *
 * NVML_MACHINE names a file of lines "DEVICE KEY NUMBER", read again at each call, so that a test
 * can change the machine while it runs; DEVICE is an index, or -1 for the library. NVML_CALLS names
 * a file that gets a line for each call: time in ns, thread, name, device, return code.
 */
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef enum {
	SUCCESS = 0,
	UNINITIALIZED = 1,
	INVALID_ARGUMENT = 2,
	NOT_SUPPORTED = 3,
	NOT_FOUND = 6,
	INSUFFICIENT_SIZE = 7,
	DRIVER_NOT_LOADED = 9,
	VERSION_MISMATCH = 25,
} ret_t;

#define BOARDS 8
#define INSTANCES 4
#define REFRESH_NS 100000000ull
#define GPM_METRIC_MAX 333 /* of nvml.h; bindings may have room for more */

/* A handle is a pointer to one of these: boards first, then four MIG instances of each. */
struct device {
	int index;
};
typedef struct device *device_t;
static struct device devices[BOARDS * (1 + INSTANCES)];

struct gpm_sample {
	int device;
	uint64_t at_ns;
};

typedef struct {
	char *short_name, *long_name, *unit;
} metric_info;

typedef struct {
	unsigned int metric_id;
	ret_t ret;
	double value;
	metric_info info;
} gpm_metric;

typedef struct {
	unsigned int version, count;
	struct gpm_sample *sample1, *sample2;
	gpm_metric metrics[GPM_METRIC_MAX];
} gpm_metrics_get;

typedef struct {
	unsigned int version, is_supported;
} gpm_support;

typedef struct {
	unsigned int field_id, scope_id;
	long long timestamp, latency_usec;
	int value_type;
	ret_t ret;
	union {
		double d;
		unsigned int ui;
		unsigned long long ull;
	} value;
} field_value;

typedef struct {
	unsigned int version;
	unsigned long long total, reserved, free, used;
} memory_v2;

static int initialized;
static uint64_t born_ns;

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

/* Value of a key of the machine, or `otherwise`. */
static double get(int device, const char *key, double otherwise)
{
	char name[64];
	double value;
	int of;
	FILE *file = fopen(getenv("NVML_MACHINE"), "r");

	while (file && fscanf(file, "%d %63s %lf", &of, name, &value) == 3)
		if (of == device && !strcmp(name, key))
			otherwise = value;
	if (file)
		fclose(file);
	return otherwise;
}

static ret_t told(const char *call, int device, ret_t ret)
{
	FILE *file = fopen(getenv("NVML_CALLS"), "a");

	if (file) {
		fprintf(file, "%llu %ld %s %d %d\n", (unsigned long long)now_ns(),
			syscall(SYS_gettid), call, device, ret);
		fclose(file);
	}
	return ret;
}

/* What the machine has a call answer: "fail" for all calls, "fail:NAME" for one. */
static ret_t state(const char *call, int device)
{
	char key[64];
	int ret = (int)get(device, "fail", SUCCESS);

	if (!initialized)
		return UNINITIALIZED;
	snprintf(key, sizeof(key), "fail:%s", call);
	usleep((unsigned int)get(-1, "slow_us", 0));
	return ret ? (ret_t)ret : (ret_t)get(device, key, SUCCESS);
}

#define BEGIN(device)                           \
	int index_ = (device)->index;           \
	ret_t state_ = state(__func__, index_); \
	if (state_)                             \
	return told(__func__, index_, state_)
#define END(ret) return told(__func__, index_, ret)

static inline int is_mig(int index)
{
	return index >= BOARDS;
}

static int board_of(int index)
{
	return is_mig(index) ? (index - BOARDS) / INSTANCES : index;
}

static int exists(int index)
{
	int board = board_of(index), instance = (index - BOARDS) % INSTANCES;

	if (board >= (int)get(-1, "boards", 0))
		return 0;
	return !is_mig(index) || instance < (int)get(board, "mig", 0);
}

static void uuid_of(int index, char *uuid)
{
	sprintf(uuid, "%s-00000000-0000-0000-0000-%012d", is_mig(index) ? "MIG" : "GPU", index);
}

/* A counter that grows `key` a second and moves every 100 ms. */
static uint64_t counter(int device, const char *key)
{
	uint64_t moved_ns = now_ns() / REFRESH_NS * REFRESH_NS - born_ns;

	return (uint64_t)(get(device, key, 0) * (double)moved_ns / 1e9);
}
