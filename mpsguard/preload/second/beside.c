#define _GNU_SOURCE
#include "second/beside.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "second/lane.h"
#include "second/reasons.h"
#include "second/rebuild.h"

// Nothing listens there, and root alone could change that: CUDA runs outside of MPS.
#define NOWHERE "/nonexistent"
#define UUID_BYTES 16

typedef struct {
    enum { UNTRIED, MADE, FAILED } state;
    word context;
    unsigned share;
} beside;

static beside made[PLACE_COUNT];
static word context_first;
static int device_first;
static unsigned wanted_share;
static unsigned char uuid[UUID_BYTES];
static bool uuid_is_known;

static bool read_uuid(const driver_copy *copy, word device, unsigned char out[UUID_BYTES]) {
    return CALL(copy, cuDeviceGetUuid_v2, WORD(out), device) == MG_SUCCESS;
}

void beside_begin(word context, int device) {
    context_first = context;
    device_first = device;
    uuid_is_known = read_uuid(&first_copy, (word)device, uuid);
}

// As CUDA_VISIBLE_DEVICES has it: the one GPU that the program uses, however the lane counts.
static void print_uuid(char out[64]) {
    size_t at = (size_t)snprintf(out, 64, "GPU-");
    for (size_t i = 0; i < UUID_BYTES; ++i)
        at += (size_t)snprintf(out + at, 64 - at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

static bool load(copy_place place) {
    char directory[4096], devices[64];
    // Where there is no lane, CUDA would run outside of MPS.
    if (place == PLACE_LANE)
        return lane_directory(directory, sizeof directory) && access(directory, X_OK) == 0 && copies_load(place, directory, NULL, wanted_share, device_first);
    print_uuid(devices);
    return uuid_is_known && copies_load(place, NOWHERE, devices, 0, 0);
}

static bool is_right_device(copy_place place) {
    unsigned char found[UUID_BYTES];
    return place == PLACE_LANE || (read_uuid(copies_second(), copies_device(), found) && memcmp(found, uuid, UUID_BYTES) == 0);
}

bool beside_is_made(copy_place place) { return made[place].state == MADE; }

// NULL, or the step that failed.
static const char *make_ready(copy_place place) {
    if (!load(place)) return "load";
    if (CALL(copies_second(), cuInit, 0) != MG_SUCCESS) return "cuInit";
    if (!is_right_device(place)) return "device";
    if (CALL(copies_second(), cuDevicePrimaryCtxRetain, WORD(&made[place].context), copies_device()) != MG_SUCCESS) return "context";
    return NULL;
}

bool beside_make(copy_place place) {
    if (made[place].state != UNTRIED) return made[place].state == MADE;
    const copy_place before = copies_place();
    copies_work_at(place);
    const char *const failed = make_ready(place);
    if (failed == NULL) rebuild_set_contexts(place, context_first, made[place].context);
    else reasons_hold_for(place == PLACE_LANE ? REASON_second_failed : REASON_not_repeated, failed);
    copies_work_at(before);
    made[place].state = failed == NULL ? MADE : FAILED;
    made[place].share = place == PLACE_LANE ? wanted_share : 0;
    return failed == NULL;
}

void beside_want_share(unsigned share) { wanted_share = share; }

bool beside_has_share(void) { return made[PLACE_LANE].state == MADE && made[PLACE_LANE].share == wanted_share; }

void beside_give_up(void) {
    if (made[PLACE_LANE].state == MADE && beside_enter(PLACE_LANE)) CALL(copies_second(), cuDevicePrimaryCtxReset_v2, copies_device());
    made[PLACE_LANE] = (beside){.state = UNTRIED};
}

bool beside_enter(copy_place place) {
    copies_work_at(place);
    return CALL(copies_second(), cuCtxSetCurrent, made[place].context) == MG_SUCCESS;
}

void beside_end_alone(void) {
    copies_work_at(PLACE_ALONE);
    CALL(copies_second(), cuDevicePrimaryCtxRelease_v2, copies_device());
    made[PLACE_ALONE] = (beside){.state = FAILED};
}
