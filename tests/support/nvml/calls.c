/* The frame of every call (session, faults, hangs, handles), and the functions that name no device. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "double.h"

#define HANDLES 1024
#define HANG_POLL_MS 50

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned sessions; /* nvmlInit counts: the last nvmlShutdown ends the session */
static unsigned long long session_epoch;
static struct device handles[HANDLES]; /* never given back, so that a stale handle is safe to look at */
static size_t handle_count;

static const char *injected(const char *what, const char *function, const char *uuid)
{
    char key[KEY_SIZE];
    snprintf(key, sizeof key, "%s.%s", what, function);
    const char *found = state_text(key);
    return found || !uuid ? found : state_field(key, uuid);
}

nvmlReturn_t fault(const char *function, const char *uuid)
{
    char key[KEY_SIZE];
    snprintf(key, sizeof key, "fail.%s", function);
    if (!injected("fail", function, uuid))
        return NVML_SUCCESS;
    return (nvmlReturn_t)(state_text(key) ? state_number(key) : state_field_number(key, uuid));
}

void pause_call(unsigned milliseconds)
{
    pthread_mutex_unlock(&lock);
    usleep(milliseconds * 1000);
    pthread_mutex_lock(&lock);
    state_refresh();
}

static void enter(const char *function, const char *uuid)
{
    pthread_mutex_lock(&lock);
    state_refresh();
    while (injected("hang", function, uuid))
        pause_call(HANG_POLL_MS);
}

nvmlReturn_t end(nvmlReturn_t result)
{
    pthread_mutex_unlock(&lock);
    return result;
}

/* A session does not outlive its driver: after a reload a process has to shut down and initialise anew. */
nvmlReturn_t session(void)
{
    if (sessions == 0)
        return NVML_UNINITIALIZED;
    if (!state_number("driver.loaded") || state_number("driver.epoch") != session_epoch)
        return NVML_DRIVER_NOT_LOADED;
    return NVML_SUCCESS;
}

nvmlReturn_t begin(const char *function)
{
    enter(function, NULL);
    nvmlReturn_t result = session();
    return result == NVML_SUCCESS ? fault(function, NULL) : result;
}

static bool is_stale(const struct device *device)
{
    if (!device->is_mig)
        return !state_field(device->uuid, "index");
    return !state_field(device->uuid, "parent")
        || device->generation != state_field_number(device->board, "mig_generation");
}

static bool is_in_scope(const struct device *device, enum scope scope)
{
    switch (scope) {
    case BOARD:
        return !device->is_mig;
    case BOARD_NOT_MIG:
        return !device->is_mig && !state_field_number(device->uuid, "mig");
    case MIG_DEVICE:
        return device->is_mig;
    default:
        return true;
    }
}

nvmlReturn_t begin_device(const char *function, nvmlDevice_t device, enum scope scope)
{
    enter(function, device ? device->uuid : NULL);
    nvmlReturn_t result = session();
    if (result != NVML_SUCCESS)
        return result;
    if (!device)
        return NVML_INVALID_ARGUMENT;
    if ((result = fault(function, device->uuid)) != NVML_SUCCESS)
        return result;
    if (state_field_number(device->board, "lost"))
        return NVML_GPU_IS_LOST;
    if (is_stale(device))
        return NVML_INVALID_ARGUMENT;
    return is_in_scope(device, scope) ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
}

nvmlDevice_t device_handle(const char *uuid)
{
    const char *parent = state_field(uuid, "parent");
    const char *board = parent ? parent : uuid;
    if (strlen(uuid) >= UUID_SIZE || !state_field(board, "index"))
        return NULL;
    unsigned long long generation = parent ? state_field_number(board, "mig_generation") : 0;
    for (size_t place = 0; place < handle_count; place++) {
        if (handles[place].generation == generation && !strcmp(handles[place].uuid, uuid))
            return &handles[place];
    }
    if (handle_count == HANDLES)
        return NULL;
    nvmlDevice_t fresh = &handles[handle_count++];
    snprintf(fresh->uuid, UUID_SIZE, "%s", uuid);
    snprintf(fresh->board, UUID_SIZE, "%s", board);
    fresh->generation = generation;
    fresh->is_mig = parent != NULL;
    return fresh;
}

nvmlReturn_t copy_text(const char *text, char *buffer, unsigned size)
{
    if (!text || !buffer)
        return NVML_INVALID_ARGUMENT;
    if (strlen(text) >= size)
        return NVML_INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return NVML_SUCCESS;
}

static nvmlReturn_t initialise(const char *function)
{
    enter(function, NULL);
    nvmlReturn_t result = fault(function, NULL);
    if (result == NVML_SUCCESS && !state_number("driver.loaded"))
        result = NVML_DRIVER_NOT_LOADED;
    if (result == NVML_SUCCESS && sessions++ == 0)
        session_epoch = state_number("driver.epoch");
    return end(result);
}

NVML_API nvmlReturn_t nvmlInit_v2(void)
{
    return initialise(__func__);
}

NVML_API nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return initialise(__func__);
}

NVML_API nvmlReturn_t nvmlShutdown(void)
{
    enter(__func__, NULL);
    if (sessions == 0)
        return end(NVML_UNINITIALIZED);
    nvmlReturn_t result = fault(__func__, NULL);
    if (result == NVML_SUCCESS && --sessions == 0)
        forget_event_sets();
    return end(result);
}

NVML_API const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_SUCCESS:
        return "Success";
    case NVML_UNINITIALIZED:
        return "Uninitialized";
    case NVML_INVALID_ARGUMENT:
        return "Invalid Argument";
    case NVML_NOT_SUPPORTED:
        return "Not Supported";
    case NVML_NOT_FOUND:
        return "Not Found";
    case NVML_DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    case NVML_TIMEOUT:
        return "Timeout";
    case NVML_GPU_IS_LOST:
        return "GPU is lost";
    default:
        return "Unknown Error";
    }
}

NVML_API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    nvmlReturn_t result = begin(__func__);
    return end(result == NVML_SUCCESS ? copy_text(state_text("driver.version"), version, length) : result);
}

NVML_API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    nvmlReturn_t result = begin(__func__);
    return end(result == NVML_SUCCESS ? copy_text(state_text("driver.nvml"), version, length) : result);
}

NVML_API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    nvmlReturn_t result = begin(__func__);
    if (result == NVML_SUCCESS && !count)
        result = NVML_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *count = (unsigned)state_number("boards");
    return end(result);
}
