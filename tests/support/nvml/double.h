/* What the parts of the stand-in share: the state file, the handles, and the frame of every call. */
#ifndef DOUBLE_H
#define DOUBLE_H

#include <stdbool.h>
#include <stddef.h>

#include "nvml_abi.h"

#define UUID_SIZE 96
#define KEY_SIZE 256

/* A handle stays what it was: the state is looked up by its UUID at each call. The generation is that of the
 * board's MIG layout when the handle was given out; a handle of an earlier layout is stale. */
struct device {
    char uuid[UUID_SIZE];
    char board[UUID_SIZE]; /* of a MIG device its parent, else the same UUID */
    unsigned long long generation;
    bool is_mig;
};

/* state.c: valid only between begin and end, which hold the lock. */
void state_refresh(void);
const char *state_text(const char *key);                               /* NULL if there is no such key */
const char *state_field(const char *uuid, const char *name);           /* of the key "uuid.name" */
unsigned long long state_number(const char *key);                      /* 0 if there is no such key */
unsigned long long state_field_number(const char *uuid, const char *name);

/* Lists: entries apart by a space, numbers by a colon, "-" for a number that is not known. */
size_t list_length(const char *list);
const char *list_next(const char *list, unsigned long long *numbers, size_t count); /* NULL at the end */

/* calls.c */
enum scope {
    ANY_DEVICE,    /* boards and MIG devices */
    BOARD,         /* not MIG devices */
    BOARD_NOT_MIG, /* not MIG devices, and not boards with MIG on */
    MIG_DEVICE,
};

/* Every function runs between begin and end. begin waits out a hang, takes the lock (also when it fails) and
 * answers what stands in the way: not initialised, no driver, an injected fault, a lost board, a stale
 * handle, a device out of scope. end gives the lock back and returns its argument. */
nvmlReturn_t begin(const char *function);
nvmlReturn_t begin_device(const char *function, nvmlDevice_t device, enum scope scope);
nvmlReturn_t end(nvmlReturn_t result);
nvmlReturn_t fault(const char *function, const char *uuid); /* within begin and end */
nvmlReturn_t session(void);                                 /* within begin and end: is it still good? */
void pause_call(unsigned milliseconds);                     /* within begin and end: sleep without the lock */

nvmlDevice_t device_handle(const char *uuid); /* NULL if the state does not know the UUID */
nvmlReturn_t copy_text(const char *text, char *buffer, unsigned size);

/* events.c: the end of a session takes its event sets with it. */
void forget_event_sets(void);

#endif
