#include "second/room.h"

#include "second/ahead.h"
#include "second/beside.h"
#include "second/log.h"
#include "second/rebuild.h"
#include "second/spare.h"
#include "second/takeover_state.h"

bool room_is_prepared(void) {
    return !takeover_was_refused() && beside_is_made(PLACE_LANE) && beside_enter(PLACE_LANE);
}

void room_map_ahead(int most) {
    for (ahead_result last = AHEAD_UNMAPPED; last != AHEAD_DONE && most > 0 && !takeover_has_to_wait(); most -= last == AHEAD_MAPPED) {
        takeover_lock();
        last = room_is_prepared() ? ahead_step() : AHEAD_DONE;
        takeover_unlock();
    }
}

// In a thread of the program: it has no context of the second driver's before the takeover.
static bool drop_ahead(void) {
    if (!ahead_is_behind() || !room_is_prepared()) return false;
    const bool any = ahead_drop(true);
    CALL(copies_at_work(), cuCtxSetCurrent, 0);
    return any;
}

bool room_give_up_spare(reason why, const char *detail) {
    if (!spare_is_held()) return false;
    log_break(why, detail);
    return spare_give_up();
}

static bool give_up_instances(void) {
    if (!rebuild_has_instances() || !room_is_prepared()) return false;
    rebuild_give_up_instances();
    CALL(copies_at_work(), cuCtxSetCurrent, 0);
    return true;
}

bool room_is_made(void) {
    if (!spare_is_held() && !ahead_is_behind() && !rebuild_has_instances()) return false;
    takeover_lock_at_once();
    // What the program has freed may be enough.
    bool more = drop_ahead();
    if (!more) {
        more = room_give_up_spare(REASON_no_spare_memory, "the program needed it");
        drop_ahead();
    }
    if (!more) more = give_up_instances();
    takeover_unlock();
    return more;
}

void room_is_asked(void) {
    if (!ahead_is_behind() || !takeover_try_lock()) return;
    drop_ahead();
    takeover_unlock();
}
