/* Event sets. The state lists all events so far, each with a sequence number; a set gets those of the boards
 * and types it was registered for, from its registration on: the driver does not replay older ones. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "double.h"

#define SETS 32
#define REGISTRATIONS 64
#define EVENT_POLL_MS 10

struct event_set {
    bool in_use;
    size_t count;
    unsigned long long seen; /* the sequence number of the last event given out */
    struct {
        char uuid[UUID_SIZE];
        unsigned long long types, after;
    } registered[REGISTRATIONS];
};

struct event {
    char uuid[UUID_SIZE];
    unsigned long long sequence, type, data;
    unsigned instance, compute_instance;
};

static struct event_set sets[SETS];

static const char *next_event(const char *list, struct event *event)
{
    int length = 0;
    if (!list || sscanf(list, "%llu:%95[^:]:%llu:%llu:%u:%u%n", &event->sequence, event->uuid, &event->type,
                        &event->data, &event->instance, &event->compute_instance, &length) != 6)
        return NULL;
    list += length;
    return *list == ' ' ? list + 1 : list;
}

static unsigned long long last_sequence(void)
{
    struct event event = {.sequence = 0};
    for (const char *list = state_text("events"); (list = next_event(list, &event));)
        ;
    return event.sequence;
}

static bool is_wanted(const struct event_set *set, const struct event *event)
{
    for (size_t place = 0; place < set->count; place++) {
        if (set->registered[place].types & event->type && set->registered[place].after < event->sequence
            && !strcmp(set->registered[place].uuid, event->uuid))
            return true;
    }
    return false;
}

static bool take_event(struct event_set *set, nvmlEventData_t *data)
{
    struct event event;
    for (const char *list = state_text("events"); (list = next_event(list, &event));) {
        if (event.sequence <= set->seen || !is_wanted(set, &event))
            continue;
        set->seen = event.sequence;
        *data = (nvmlEventData_t){device_handle(event.uuid), event.type, event.data, event.instance,
                                  event.compute_instance};
        return true;
    }
    return false;
}

static bool has_lost_board(const struct event_set *set)
{
    for (size_t place = 0; place < set->count; place++) {
        if (state_field_number(set->registered[place].uuid, "lost"))
            return true;
    }
    return false;
}

void forget_event_sets(void)
{
    for (size_t place = 0; place < SETS; place++)
        sets[place].in_use = false;
}

NVML_API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    nvmlReturn_t result = begin(__func__);
    if (result != NVML_SUCCESS)
        return end(result);
    for (size_t place = 0; place < SETS; place++) {
        if (!sets[place].in_use) {
            memset(&sets[place], 0, sizeof sets[place]);
            sets[place].in_use = true;
            *set = &sets[place];
            return end(NVML_SUCCESS);
        }
    }
    return end(NVML_MEMORY);
}

NVML_API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    nvmlReturn_t result = begin(__func__);
    if (result == NVML_SUCCESS && (!set || !set->in_use))
        result = NVML_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        set->in_use = false;
    return end(result);
}

/* "NVML_ERROR_NOT_SUPPORTED if the platform does not support this feature or some of requested event
 * types": then nothing is registered. */
NVML_API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types,
                                               nvmlEventSet_t set)
{
    nvmlReturn_t result = begin_device(__func__, device, BOARD);
    if (result == NVML_SUCCESS && (!set || !set->in_use))
        result = NVML_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS && types & ~state_field_number(device->uuid, "event_types"))
        result = NVML_NOT_SUPPORTED;
    if (result == NVML_SUCCESS && set->count == REGISTRATIONS)
        result = NVML_MEMORY;
    if (result == NVML_SUCCESS) {
        size_t place = set->count++;
        strcpy(set->registered[place].uuid, device->uuid);
        set->registered[place].types = types;
        set->registered[place].after = last_sequence();
    }
    return end(result);
}

static long long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

/* "NVML_ERROR_GPU_IS_LOST if a GPU has fallen off the bus": once the events before it are given out, every
 * wait of a set with such a board returns at once. The caller is the one not to spin. */
NVML_API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
{
    nvmlReturn_t result = begin(__func__);
    if (result == NVML_SUCCESS && (!set || !set->in_use))
        result = NVML_INVALID_ARGUMENT;
    long long deadline = now_ms() + timeout_ms;
    while (result == NVML_SUCCESS && !take_event(set, data)) {
        if (has_lost_board(set)) {
            result = NVML_GPU_IS_LOST;
        } else if (now_ms() >= deadline) {
            result = NVML_TIMEOUT;
        } else {
            pause_call(EVENT_POLL_MS);
            result = session();
        }
    }
    return end(result);
}
