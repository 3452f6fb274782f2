/* The functions of one board or MIG device: identity, utilisation, memory, power, throttling, MIG layout. */
#include <stdio.h>
#include <string.h>

#include "double.h"

/* A lost board answers GPU_IS_LOST already here, and a fault can be of one board only. */
static nvmlReturn_t give_handle(const char *function, const char *uuid, nvmlDevice_t *device)
{
    if (!uuid || !(*device = device_handle(uuid)))
        return NVML_NOT_FOUND;
    nvmlReturn_t result = fault(function, uuid);
    if (result == NVML_SUCCESS && state_field_number((*device)->board, "lost"))
        result = NVML_GPU_IS_LOST;
    return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    nvmlReturn_t result = begin(__func__);
    if (result == NVML_SUCCESS) {
        char key[KEY_SIZE];
        snprintf(key, sizeof key, "board.%u", index);
        const char *uuid = state_text(key);
        result = uuid ? give_handle(__func__, uuid, device) : NVML_INVALID_ARGUMENT;
    }
    return end(result);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    nvmlReturn_t result = begin(__func__);
    return end(result == NVML_SUCCESS ? give_handle(__func__, uuid, device) : result);
}

NVML_API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
    nvmlReturn_t result = begin_device(__func__, device, ANY_DEVICE);
    return end(result == NVML_SUCCESS ? copy_text(device->uuid, uuid, length) : result);
}

NVML_API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length)
{
    nvmlReturn_t result = begin_device(__func__, device, ANY_DEVICE);
    return end(result == NVML_SUCCESS ? copy_text(state_field(device->uuid, "name"), name, length) : result);
}

/* A number of the device that is not supported where the state does not have it. */
static nvmlReturn_t give_number(const char *function, nvmlDevice_t device, enum scope scope, const char *name,
                                unsigned long long *number)
{
    nvmlReturn_t result = begin_device(function, device, scope);
    if (result == NVML_SUCCESS && !state_field(device->uuid, name))
        result = NVML_NOT_SUPPORTED;
    if (result == NVML_SUCCESS && !number)
        result = NVML_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *number = state_field_number(device->uuid, name);
    return end(result);
}

static nvmlReturn_t give_unsigned(const char *function, nvmlDevice_t device, enum scope scope,
                                  const char *name, unsigned *number)
{
    unsigned long long wide = 0;
    nvmlReturn_t result = give_number(function, device, scope, name, number ? &wide : NULL);
    if (result == NVML_SUCCESS)
        *number = (unsigned)wide;
    return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
    return give_unsigned(__func__, device, BOARD, "index", index);
}

NVML_API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor)
{
    return give_unsigned(__func__, device, BOARD, "minor", minor);
}

NVML_API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts)
{
    return give_unsigned(__func__, device, BOARD, "power_mw", milliwatts);
}

/* "for this GPU in millijoules (mJ) since the driver was last reloaded" */
NVML_API nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *energy)
{
    return give_number(__func__, device, BOARD, "field.83", energy);
}

NVML_API nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    return give_number(__func__, device, BOARD, "clock_reasons", reasons);
}

NVML_API nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device,
                                                                unsigned long long *reasons)
{
    return give_number(__func__, device, BOARD, "clock_reasons", reasons);
}

NVML_API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    return give_number(__func__, device, BOARD, "event_types", types);
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id)
{
    return give_unsigned(__func__, device, MIG_DEVICE, "instance", id);
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *id)
{
    return give_unsigned(__func__, device, MIG_DEVICE, "compute_instance", id);
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    nvmlReturn_t result = begin_device(__func__, device, BOARD);
    if (result == NVML_SUCCESS) {
        const char *bus_id = state_field(device->uuid, "pci");
        memset(pci, 0, sizeof *pci);
        snprintf(pci->busId, sizeof pci->busId, "%s", bus_id);
        /* The older form has a domain of four digits. */
        snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%.12s", strlen(bus_id) > 12 ? bus_id + 4 : bus_id);
        sscanf(bus_id, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    }
    return end(result);
}

/* "Percent of time over the past sample period during which one or more kernels was executing"; "not
 * supported on MIG". The latest sample of the ring is what the period shows. */
NVML_API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    nvmlReturn_t result = begin_device(__func__, device, BOARD_NOT_MIG);
    if (result == NVML_SUCCESS) {
        unsigned long long sample[2] = {0, 0};
        const char *list = state_field(device->uuid, "samples");
        while (list && *list)
            list = list_next(list, sample, 2);
        *utilization = (nvmlUtilization_t){(unsigned)sample[1], 0};
    }
    return end(result);
}

#ifndef WITHOUT_SAMPLES
static unsigned copy_samples(const char *list, unsigned long long last_seen, nvmlSample_t *samples,
                             unsigned room)
{
    unsigned copied = 0;
    unsigned long long sample[2];
    while (copied < room && (list = list_next(list, sample, 2))) {
        if (sample[0] > last_seen)
            samples[copied++] = (nvmlSample_t){sample[0], {.as_unsigned = (unsigned)sample[1]}};
    }
    return copied;
}

/* Two calls: without a buffer the answer is the size of the ring, not the number of new samples; with one,
 * the samples newer than lastSeenTimeStamp, or NOT_FOUND where there is none. */
NVML_API nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, unsigned type,
                                           unsigned long long lastSeenTimeStamp, unsigned *valueType,
                                           unsigned *count, nvmlSample_t *samples)
{
    nvmlReturn_t result = begin_device(__func__, device, BOARD_NOT_MIG);
    if (result == NVML_SUCCESS && type != NVML_GPU_UTILIZATION_SAMPLES)
        result = NVML_NOT_SUPPORTED;
    if (result == NVML_SUCCESS) {
        const char *list = state_field(device->uuid, "samples");
        *valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        *count = samples ? copy_samples(list, lastSeenTimeStamp, samples, *count)
                         : (unsigned)list_length(list);
        result = *count > 0 ? NVML_SUCCESS : NVML_NOT_FOUND;
    }
    return end(result);
}
#endif

static nvmlReturn_t give_memory(const char *function, nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    nvmlReturn_t result = begin_device(function, device, ANY_DEVICE);
    unsigned long long found[3]; /* total, reserved, used */
    if (result == NVML_SUCCESS && !list_next(state_field(device->uuid, "memory"), found, 3))
        result = NVML_NOT_SUPPORTED;
    if (result == NVML_SUCCESS) {
        memory->total = found[0];
        memory->reserved = found[1];
        memory->used = found[2];
        memory->free = found[0] - found[1] - found[2];
    }
    return end(result);
}

/* The first version counts reserved memory as used; the second keeps it apart. */
NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    nvmlMemory_v2_t found;
    nvmlReturn_t result = give_memory(__func__, device, &found);
    if (result == NVML_SUCCESS)
        *memory = (nvmlMemory_t){found.total, found.free, found.used + found.reserved};
    return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    if (memory->version != (sizeof *memory | 2u << 24))
        return NVML_ARGUMENT_VERSION_MISMATCH;
    return give_memory(__func__, device, memory);
}

#ifndef WITHOUT_FIELD_VALUES
static void give_field(nvmlDevice_t device, nvmlFieldValue_t *value)
{
    char name[KEY_SIZE];
    snprintf(name, sizeof name, "field_error.%u", value->fieldId);
    value->timestamp = (long long)state_number("driver.now_us");
    value->latencyUsec = 0;
    value->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    value->nvmlReturn = (nvmlReturn_t)state_field_number(device->uuid, name);
    if (value->nvmlReturn != NVML_SUCCESS)
        return;
    snprintf(name, sizeof name, "field.%u", value->fieldId);
    value->nvmlReturn = state_field(device->uuid, name) ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
    value->value.as_unsigned_long_long = state_field_number(device->uuid, name);
}

/* "NVML_SUCCESS if any values in values were populated": each value has its own nvmlReturn. */
NVML_API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    nvmlReturn_t result = begin_device(__func__, device, ANY_DEVICE);
    for (int place = 0; result == NVML_SUCCESS && place < count; place++)
        give_field(device, &values[place]);
    return end(result);
}
#endif

NVML_API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_mig)
{
    nvmlReturn_t result = begin_device(__func__, device, ANY_DEVICE);
    if (result == NVML_SUCCESS)
        *is_mig = device->is_mig;
    return end(result);
}

NVML_API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    nvmlReturn_t result = give_unsigned(__func__, device, BOARD, "mig", current);
    if (result == NVML_SUCCESS)
        *pending = *current;
    return result;
}

/* "Zero if MIG is not supported or enabled." */
NVML_API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
    nvmlReturn_t result = begin_device(__func__, device, BOARD);
    if (result == NVML_SUCCESS) {
        bool enabled = state_field_number(device->uuid, "mig");
        *count = enabled ? (unsigned)state_field_number(device->uuid, "mig_slots") : 0;
    }
    return end(result);
}

/* The index is sparse: NOT_FOUND at one place says nothing of the next. */
NVML_API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index,
                                                          nvmlDevice_t *mig)
{
    nvmlReturn_t result = begin_device(__func__, device, BOARD);
    if (result == NVML_SUCCESS && !state_field_number(device->uuid, "mig"))
        result = NVML_NOT_SUPPORTED;
    if (result == NVML_SUCCESS) {
        char name[KEY_SIZE];
        snprintf(name, sizeof name, "mig.%u", index);
        result = give_handle(__func__, state_field(device->uuid, name), mig);
    }
    return end(result);
}

NVML_API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
    nvmlReturn_t result = begin_device(__func__, mig, MIG_DEVICE);
    if (result == NVML_SUCCESS)
        *device = device_handle(mig->board);
    return end(result);
}

/* "This API currently only supports MIG device handles." */
NVML_API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    nvmlReturn_t result = begin_device(__func__, device, MIG_DEVICE);
    unsigned long long found[4];
    if (result == NVML_SUCCESS && list_next(state_field(device->uuid, "attributes"), found, 4)) {
        memset(attributes, 0, sizeof *attributes);
        attributes->multiprocessorCount = (unsigned)found[0];
        attributes->gpuInstanceSliceCount = (unsigned)found[1];
        attributes->computeInstanceSliceCount = (unsigned)found[2];
        attributes->memorySizeMB = found[3];
    }
    return end(result);
}
