#define _GNU_SOURCE
#include "second/beside.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "second/lane.h"
#include "second/reasons.h"

// Nothing listens there, and root alone could change that: CUDA runs outside of MPS.
#define NOWHERE "/nonexistent"
#define UUID_BYTES 16

typedef struct {
    enum { UNTRIED, MADE, FAILED } state;
    driver_copy *copy;
} beside;

static beside made[PLACE_COUNT];
static _Atomic unsigned number_at_lane;
static int device_first;
static unsigned wanted_share;
static unsigned char uuid[UUID_BYTES];
static bool uuid_is_known;

static bool read_uuid(const driver_copy *copy, word device, unsigned char out[UUID_BYTES]) {
    return CALL(copy, cuDeviceGetUuid_v2, WORD(out), device) == MG_SUCCESS;
}

void beside_begin(int device) {
    device_first = device;
    uuid_is_known = read_uuid(&first_copy, (word)device, uuid);
}

// As CUDA_VISIBLE_DEVICES has it: the one GPU that the program uses, however the lane counts.
static void print_uuid(char out[64]) {
    size_t at = (size_t)snprintf(out, 64, "GPU-");
    for (size_t i = 0; i < UUID_BYTES; ++i)
        at += (size_t)snprintf(out + at, 64 - at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

// As the program has it where nothing else is wanted.
static unsigned share(void) { return wanted_share != 0 ? wanted_share : copies_at_hand()->share; }

static driver_copy *load(copy_place place) {
    char directory[4096], devices[64];
    // Where there is no lane, CUDA would run outside of MPS.
    if (place == PLACE_LANE) {
        const bool there = lane_directory(copies_at_hand()->directory, directory, sizeof directory) && access(directory, X_OK) == 0;
        return there ? copies_load(place, directory, NULL, share(), device_first) : NULL;
    }
    print_uuid(devices);
    return uuid_is_known ? copies_load(place, NOWHERE, devices, 0, 0) : NULL;
}

static bool is_right_device(const driver_copy *copy) {
    unsigned char found[UUID_BYTES];
    return copy->place == PLACE_LANE || (read_uuid(copy, copy->device, found) && memcmp(found, uuid, UUID_BYTES) == 0);
}

bool beside_is_made(copy_place place) { return made[place].state == MADE; }
bool beside_is_tried(void) { return made[PLACE_LANE].state != UNTRIED; }
unsigned beside_number(void) { return atomic_load(&number_at_lane); }

// NULL, or the step that failed.
static const char *make_ready(driver_copy *copy) {
    if (copy == NULL) return "load";
    if (CALL(copy, cuInit, 0) != MG_SUCCESS) return "cuInit";
    if (!is_right_device(copy)) return "device";
    if (CALL(copy, cuDevicePrimaryCtxRetain, WORD(&copy->context), copy->device) != MG_SUCCESS) return "context";
    return NULL;
}

bool beside_make(copy_place place) {
    if (made[place].state != UNTRIED) return made[place].state == MADE;
    if (copies_left() == 0) {
        reasons_hold(REASON_no_copies_left);
        return false;
    }
    driver_copy *const copy = load(place);
    const char *const failed = make_ready(copy);
    if (failed != NULL) reasons_hold_for(place == PLACE_LANE ? REASON_second_failed : REASON_not_repeated, failed);
    made[place] = (beside){failed == NULL ? MADE : FAILED, copy};
    if (failed == NULL && place == PLACE_LANE) atomic_store(&number_at_lane, copy->number);
    return failed == NULL;
}

void beside_want_share(unsigned share) { wanted_share = share; }

bool beside_has_share(void) { return made[PLACE_LANE].state == MADE && made[PLACE_LANE].copy->share == share(); }

void beside_go_on(void) {
    made[PLACE_LANE] = (beside){.state = UNTRIED};
    atomic_store(&number_at_lane, 0);
}

void beside_give_up(void) {
    if (made[PLACE_LANE].state == MADE && beside_enter(PLACE_LANE)) CALL(copies_at_work(), cuDevicePrimaryCtxReset_v2, copies_at_work()->device);
    made[PLACE_LANE] = (beside){.state = UNTRIED};
    atomic_store(&number_at_lane, 0);
    copies_work_with(NULL);
}

bool beside_enter(copy_place place) {
    copies_work_with(made[place].copy);
    return CALL(made[place].copy, cuCtxSetCurrent, made[place].copy->context) == MG_SUCCESS;
}

void beside_end_alone(void) {
    driver_copy *const copy = made[PLACE_ALONE].copy;
    CALL(copy, cuDevicePrimaryCtxRelease_v2, copy->device);
    made[PLACE_ALONE] = (beside){.state = UNTRIED};
}
