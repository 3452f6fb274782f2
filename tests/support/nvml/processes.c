/* The processes on a device, and how much of it each used. */
#include "double.h"

/* Two calls: a buffer that is too small (or none) gives INSUFFICIENT_SIZE and the number of processes; no
 * process at all is success with a count of zero. A board with MIG on lists those of its instances too. */
static nvmlReturn_t give_processes(const char *function, nvmlDevice_t device, const char *name,
                                   unsigned *count, nvmlProcessInfo_t *infos)
{
    nvmlReturn_t result = begin_device(function, device, ANY_DEVICE);
    if (result != NVML_SUCCESS)
        return end(result);
    const char *list = state_field(device->uuid, name);
    unsigned found = (unsigned)list_length(list), room = *count;
    *count = found;
    if (found > 0 && (!infos || room < found))
        return end(NVML_INSUFFICIENT_SIZE);
    unsigned long long process[4]; /* pid, bytes, GPU instance, compute instance */
    for (unsigned place = 0; place < found; place++) {
        list = list_next(list, process, 4);
        infos[place] = (nvmlProcessInfo_t){(unsigned)process[0], process[1], (unsigned)process[2],
                                           (unsigned)process[3]};
    }
    return end(NVML_SUCCESS);
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                              nvmlProcessInfo_t *infos)
{
    return give_processes(__func__, device, "processes.compute", count, infos);
}

NVML_API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                               nvmlProcessInfo_t *infos)
{
    return give_processes(__func__, device, "processes.graphics", count, infos);
}

NVML_API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                                 nvmlProcessInfo_t *infos)
{
    return give_processes(__func__, device, "processes.mps", count, infos);
}

#ifndef WITHOUT_PROCESS_UTILIZATION
static unsigned copy_newer(const char *list, unsigned long long last_seen,
                           nvmlProcessUtilizationSample_t *samples, unsigned room)
{
    unsigned newer = 0;
    unsigned long long sample[4]; /* microseconds, pid, SM percent, memory percent */
    while ((!samples || newer < room) && (list = list_next(list, sample, 4))) {
        if (sample[0] <= last_seen)
            continue;
        if (samples)
            samples[newer] = (nvmlProcessUtilizationSample_t){
                (unsigned)sample[1], sample[0], (unsigned)sample[2], (unsigned)sample[3], 0, 0};
        newer++;
    }
    return newer;
}

/* Two calls: the size (INSUFFICIENT_SIZE), then what fits, as the count "may differ" by then. "If no valid
 * sample entries are found since the lastSeenTimeStamp, NVML_ERROR_NOT_FOUND is returned": or, on some
 * drivers, success with a count of zero. Not supported on GPUs with MIG on. */
NVML_API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                                      nvmlProcessUtilizationSample_t *samples,
                                                      unsigned *count, unsigned long long lastSeenTimeStamp)
{
    nvmlReturn_t result = begin_device(__func__, device, BOARD_NOT_MIG);
    if (result != NVML_SUCCESS)
        return end(result);
    const char *list = state_field(device->uuid, "process_samples");
    *count = copy_newer(list, lastSeenTimeStamp, samples, *count);
    if (*count == 0) {
        bool success = state_field_number(device->uuid, "no_process_samples_is_success");
        return end(success ? NVML_SUCCESS : NVML_NOT_FOUND);
    }
    return end(samples ? NVML_SUCCESS : NVML_INSUFFICIENT_SIZE);
}
#endif
