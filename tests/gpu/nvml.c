/* A stand-in for libnvidia-ml.so.1: the calls that trainobs makes, as nvml.h declares them.
 *
 * There was no GPU to record from. The numbers of a machine (tests/gpu/machine.py) are chosen, in
 * the ranges that its data sheet gives; what is faithful here is the boundary: layouts, versions,
 * return codes, counters that move every 100 ms, samples that say nothing when they are closer.
 */
#include "machine.h"

ret_t nvmlInitWithFlags(unsigned int flags)
{
	ret_t ret = (ret_t)get(-1, "fail:init", SUCCESS);

	(void)flags;
	if (ret == SUCCESS) {
		for (int i = 0; i < BOARDS * (1 + INSTANCES); i++)
			devices[i].index = i;
		if (!initialized++)
			born_ns = now_ns() / REFRESH_NS * REFRESH_NS - 3600 * 1000000000ull;
	}
	return told(__func__, -1, ret);
}

ret_t nvmlShutdown(void)
{
	if (!initialized)
		return told(__func__, -1, UNINITIALIZED);
	initialized--;
	return told(__func__, -1, SUCCESS);
}

const char *nvmlErrorString(ret_t ret)
{
	(void)ret;
	return "error of the stand-in";
}

ret_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	if (!initialized)
		return told(__func__, -1, UNINITIALIZED);
	snprintf(version, length, "999.1 (a stand-in)");
	return told(__func__, -1, SUCCESS);
}

ret_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	*count = (unsigned int)get(-1, "boards", 0);
	return told(__func__, -1, initialized ? SUCCESS : UNINITIALIZED);
}

ret_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, device_t *device)
{
	if (!initialized)
		return told(__func__, -1, UNINITIALIZED);
	if (index >= BOARDS || !exists((int)index))
		return told(__func__, -1, INVALID_ARGUMENT);
	*device = &devices[index];
	return told(__func__, (int)index, SUCCESS);
}

ret_t nvmlDeviceGetHandleByUUID(const char *wanted, device_t *device)
{
	char uuid[64];

	if (!initialized)
		return told(__func__, -1, UNINITIALIZED);
	if (!wanted)
		return told(__func__, -1, INVALID_ARGUMENT);
	for (int i = 0; i < BOARDS * (1 + INSTANCES); i++) {
		uuid_of(i, uuid);
		if (!strcmp(uuid, wanted) && exists(i)) {
			*device = &devices[i];
			return told(__func__, i, SUCCESS);
		}
	}
	return told(__func__, -1, NOT_FOUND);
}

ret_t nvmlDeviceGetUUID(device_t device, char *uuid, unsigned int length)
{
	BEGIN(device);
	if (length < 80)
		END(INSUFFICIENT_SIZE);
	uuid_of(index_, uuid);
	END(SUCCESS);
}

ret_t nvmlDeviceGetName(device_t device, char *name, unsigned int length)
{
	BEGIN(device);
	snprintf(name, length, "Stand-in %d", index_);
	END(SUCCESS);
}

ret_t nvmlDeviceGetMigMode(device_t device, unsigned int *current, unsigned int *pending)
{
	BEGIN(device);
	if (get(index_, "mig", -1) < 0)
		END(NOT_SUPPORTED);
	*current = *pending = get(index_, "mig", 0) > 0;
	END(SUCCESS);
}

ret_t nvmlDeviceGetMaxMigDeviceCount(device_t device, unsigned int *count)
{
	BEGIN(device);
	*count = INSTANCES;
	END(SUCCESS);
}

ret_t nvmlDeviceGetMigDeviceHandleByIndex(device_t device, unsigned int index, device_t *instance)
{
	BEGIN(device);
	if (is_mig(index_) || index >= INSTANCES)
		END(INVALID_ARGUMENT);
	if (!exists(BOARDS + index_ * INSTANCES + (int)index))
		END(NOT_FOUND);
	*instance = &devices[BOARDS + index_ * INSTANCES + (int)index];
	END(SUCCESS);
}

ret_t nvmlDeviceIsMigDeviceHandle(device_t device, unsigned int *yes)
{
	BEGIN(device);
	*yes = is_mig(index_);
	END(SUCCESS);
}

ret_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device_t instance, device_t *device)
{
	BEGIN(instance);
	if (!is_mig(index_))
		END(INVALID_ARGUMENT);
	*device = &devices[board_of(index_)];
	END(SUCCESS);
}

ret_t nvmlDeviceGetGpuInstanceId(device_t device, unsigned int *id)
{
	BEGIN(device);
	if (!is_mig(index_))
		END(INVALID_ARGUMENT);
	*id = 7 + (unsigned int)(index_ - BOARDS) % INSTANCES;
	END(SUCCESS);
}

ret_t nvmlDeviceGetMemoryInfo_v2(device_t device, memory_v2 *memory)
{
	BEGIN(device);
	if (memory->version != (sizeof(*memory) | 2u << 24))
		END(VERSION_MISMATCH);
	memory->total = 80ull << 30;
	memory->reserved = 512ull << 20;
	memory->used = (unsigned long long)get(index_, "memory_used", 0);
	memory->free = memory->total - memory->reserved - memory->used;
	END(SUCCESS);
}

ret_t nvmlDeviceGetClockInfo(device_t device, int type, unsigned int *mhz)
{
	BEGIN(device);
	if (is_mig(index_))
		END(NOT_SUPPORTED);
	if (type < 0 || type > 3)
		END(INVALID_ARGUMENT);
	*mhz = (unsigned int)get(index_, type == 2 ? "memory_clock" : "sm_clock", 0);
	END(SUCCESS);
}

ret_t nvmlDeviceGetTemperature(device_t device, int sensor, unsigned int *celsius)
{
	BEGIN(device);
	if (sensor)
		END(INVALID_ARGUMENT);
	*celsius = (unsigned int)get(index_, "temperature", 0);
	END(SUCCESS);
}

ret_t nvmlDeviceGetPowerUsage(device_t device, unsigned int *milliwatts)
{
	BEGIN(device);
	*milliwatts = (unsigned int)get(index_, "sensor", 0);
	END(SUCCESS);
}

ret_t nvmlDeviceGetCurrentClocksEventReasons(device_t device, unsigned long long *reasons)
{
	BEGIN(device);
	*reasons = (unsigned long long)get(index_, "reasons", 0);
	END(SUCCESS);
}

static void answer(int device, field_value *field)
{
	const char *key = field->field_id == 83	 ? "energy" :
			  field->field_id == 74	 ? "power_limited" :
			  field->field_id == 75	 ? "heat_limited" :
			  field->field_id == 197 ? "pcie_sent" :
			  field->field_id == 198 ? "pcie_received" :
						   NULL;

	field->ret = NOT_SUPPORTED;
	field->value_type = 0;
	if (!key || get(device, key, -1) < 0)
		return;
	field->ret = SUCCESS;
	field->value_type = 3; /* unsigned long long */
	field->value.ull = counter(device, key);
	if (get(device, "short_pcie", 0) && field->field_id >= 197) {
		field->value_type = 1; /* unsigned int */
		field->value.ull = (unsigned int)field->value.ull | 0xbad00000000ull;
	}
}

ret_t nvmlDeviceGetFieldValues(device_t device, int count, field_value *fields)
{
	BEGIN(device);
	if (is_mig(index_))
		END(NOT_SUPPORTED);
	for (int i = 0; i < count; i++)
		answer(index_, &fields[i]);
	END(SUCCESS);
}

ret_t nvmlGpmQueryDeviceSupport(device_t device, gpm_support *support)
{
	BEGIN(device);
	if (support->version != 1)
		END(VERSION_MISMATCH);
	support->is_supported = (unsigned int)get(index_, "gpm", 0);
	END(SUCCESS);
}

ret_t nvmlGpmSampleAlloc(struct gpm_sample **sample)
{
	*sample = malloc(sizeof(**sample));
	(*sample)->device = -1;
	return told(__func__, -1, SUCCESS);
}

ret_t nvmlGpmSampleFree(struct gpm_sample *sample)
{
	free(sample);
	return told(__func__, -1, SUCCESS);
}

static void take(int index, struct gpm_sample *sample)
{
	sample->device = index;
	sample->at_ns = now_ns();
}

ret_t nvmlGpmSampleGet(device_t device, struct gpm_sample *sample)
{
	BEGIN(device);
	if (!get(board_of(index_), "gpm", 0))
		END(NOT_SUPPORTED);
	take(index_, sample);
	END(SUCCESS);
}

ret_t nvmlGpmMigSampleGet(device_t device, unsigned int instance, struct gpm_sample *sample)
{
	BEGIN(device);
	if (is_mig(index_) || instance < 7 || instance >= 7 + INSTANCES)
		END(INVALID_ARGUMENT);
	take(BOARDS + index_ * INSTANCES + (int)instance - 7, sample);
	END(SUCCESS);
}

ret_t nvmlGpmMetricsGet(gpm_metrics_get *request)
{
	struct gpm_sample *first = request->sample1, *second = request->sample2;
	char key[32];

	if (request->version != 1)
		return told(__func__, -1, VERSION_MISMATCH);
	if (request->count > GPM_METRIC_MAX || first->device != second->device ||
	    first->device < 0 || first->at_ns >= second->at_ns)
		return told(__func__, first->device, INVALID_ARGUMENT);
	for (unsigned int i = 0; i < request->count; i++) {
		gpm_metric *metric = &request->metrics[i];

		snprintf(key, sizeof(key), "gpm:%u", metric->metric_id);
		metric->value = get(first->device, key, -1);
		metric->ret = metric->value < 0 ? NOT_SUPPORTED : SUCCESS;
		if (second->at_ns - first->at_ns < REFRESH_NS)
			metric->value = NAN;
	}
	return told(__func__, first->device, SUCCESS);
}
