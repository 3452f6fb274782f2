/* GPM: a sample is a copy of the cumulative counters, a metric the difference of two of them in percent. */
#ifndef WITHOUT_GPM
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "double.h"

#define SHORTEST_NS 100000000ull /* two samples are at least 100 ms apart */

enum metric { GRAPHICS_UTIL = 1, SM_UTIL = 2, ANY_TENSOR_UTIL = 5 };
enum counter { ELAPSED, GRAPHICS, SM, TENSOR, COUNTERS };

struct gpm_sample {
    char source[KEY_SIZE]; /* the device whose counters these are; empty until the first get */
    unsigned long long counters[COUNTERS];
};

/* The counters are of a board or of a GPU instance: its compute instances share them. */
static void name_instance(char *source, const char *board, unsigned long long instance)
{
    snprintf(source, KEY_SIZE, "%s.instance.%llu", board, instance);
}

static void name_source(char *source, nvmlDevice_t device)
{
    if (device->is_mig)
        name_instance(source, device->board, state_field_number(device->uuid, "instance"));
    else
        snprintf(source, KEY_SIZE, "%s", device->uuid);
}

NVML_API nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
    nvmlReturn_t result = begin_device(__func__, device, ANY_DEVICE);
    if (result == NVML_SUCCESS) {
        char source[KEY_SIZE];
        name_source(source, device);
        support->isSupportedDevice = state_field(source, "gpm") != NULL;
    }
    return end(result);
}

NVML_API nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
    nvmlReturn_t result = begin(__func__);
    if (result == NVML_SUCCESS && !(*sample = calloc(1, sizeof **sample)))
        result = NVML_MEMORY;
    return end(result);
}

NVML_API nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
    nvmlReturn_t result = begin(__func__);
    if (result == NVML_SUCCESS && !sample)
        result = NVML_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        free(sample);
    return end(result);
}

static nvmlReturn_t fill(nvmlGpmSample_t sample, const char *source)
{
    if (!sample)
        return NVML_INVALID_ARGUMENT;
    if (!list_next(state_field(source, "gpm"), sample->counters, COUNTERS))
        return NVML_NOT_SUPPORTED;
    snprintf(sample->source, sizeof sample->source, "%s", source);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
    nvmlReturn_t result = begin_device(__func__, device, ANY_DEVICE);
    if (result == NVML_SUCCESS) {
        char source[KEY_SIZE];
        name_source(source, device);
        result = fill(sample, source);
    }
    return end(result);
}

NVML_API nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned instance, nvmlGpmSample_t sample)
{
    nvmlReturn_t result = begin_device(__func__, device, BOARD);
    if (result == NVML_SUCCESS && !state_field_number(device->uuid, "mig"))
        result = NVML_NOT_SUPPORTED;
    if (result == NVML_SUCCESS) {
        char source[KEY_SIZE];
        name_instance(source, device->uuid, instance);
        result = state_field(source, "profile") ? fill(sample, source) : NVML_INVALID_ARGUMENT;
    }
    return end(result);
}

static enum counter counter_of(unsigned metric)
{
    switch (metric) {
    case GRAPHICS_UTIL:
        return GRAPHICS;
    case SM_UTIL:
        return SM;
    case ANY_TENSOR_UTIL:
        return TENSOR;
    default:
        return COUNTERS;
    }
}

static void compute(nvmlGpmMetric_t *metric, nvmlGpmSample_t first, nvmlGpmSample_t second)
{
    enum counter counter = counter_of(metric->metricId);
    metric->value = 0;
    metric->nvmlReturn = counter == COUNTERS ? NVML_NOT_SUPPORTED : NVML_SUCCESS;
    if (counter != COUNTERS) {
        double elapsed = (double)(second->counters[ELAPSED] - first->counters[ELAPSED]);
        metric->value = 100 * (double)(second->counters[counter] - first->counters[counter]) / elapsed;
    }
}

/* sample1 is the earlier one; both are of one device. Each metric has its own nvmlReturn. */
NVML_API nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *get)
{
    nvmlReturn_t result = begin(__func__);
    nvmlGpmSample_t first = get->sample1, second = get->sample2;
    if (result == NVML_SUCCESS && get->version != 1)
        result = NVML_ARGUMENT_VERSION_MISMATCH;
    if (result == NVML_SUCCESS
        && (!first || !second || !*first->source || strcmp(first->source, second->source)
            || second->counters[ELAPSED] < first->counters[ELAPSED] + SHORTEST_NS))
        result = NVML_INVALID_ARGUMENT;
    for (unsigned place = 0; result == NVML_SUCCESS && place < get->numMetrics; place++)
        compute(&get->metrics[place], first, second);
    return end(result);
}
#endif
