#define _GNU_SOURCE
#include "second/takeover_state.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// For what is under way in a driver when the process exits, such as an instance of a graph.
#define EXIT_MS 2000

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int waiting;  // calls of the program, for the lock
static _Atomic bool exits, refused, moved;
static _Atomic word context_first;
static int device_first;
static pid_t owner;

second_mode takeover_mode(void) {
    static _Atomic int known;
    int mode = atomic_load_explicit(&known, memory_order_relaxed) - 1;
    if (mode < 0) {
        const char *const text = secure_getenv("MPSGUARD_SECOND_DRIVER");
        mode = text == NULL ? SECOND_OFF : strcmp(text, "hot") == 0 ? SECOND_HOT : strcmp(text, "cold") == 0 ? SECOND_COLD : SECOND_OFF;
        atomic_store_explicit(&known, mode + 1, memory_order_relaxed);
    }
    return (second_mode)mode;
}

bool takeover_happened(void) { return copies_at_hand() != &first_copy; }
bool takeover_was_move(void) { return atomic_load_explicit(&moved, memory_order_acquire); }
bool takeover_was_refused(void) { return atomic_load_explicit(&refused, memory_order_acquire); }
word takeover_context(void) { return atomic_load_explicit(&context_first, memory_order_acquire); }
word takeover_device(void) { return (word)device_first; }
bool takeover_is_owner(void) { return getpid() == owner; }

bool takeover_set_context(word context, int device, word *before) {
    *before = 0;
    if (!atomic_compare_exchange_strong(&context_first, before, context)) return false;
    first_copy.device = (word)device;
    first_copy.context = context;
    device_first = device;
    owner = getpid();
    return true;
}

void takeover_commit(bool is_move) {
    if (is_move) atomic_store_explicit(&moved, true, memory_order_release);
    copies_go_on_with(copies_at_work());
}

void takeover_refuse(void) { atomic_store_explicit(&refused, true, memory_order_release); }

void takeover_lock(void) { pthread_mutex_lock(&lock); }
void takeover_unlock(void) {
    copies_work_with(NULL);
    pthread_mutex_unlock(&lock);
}
bool takeover_try_lock(void) { return pthread_mutex_trylock(&lock) == 0; }

void takeover_lock_at_once(void) {
    atomic_fetch_add(&waiting, 1);
    takeover_lock();
    atomic_fetch_sub(&waiting, 1);
}

bool takeover_has_to_wait(void) { return atomic_load(&waiting) > 0 || atomic_load(&exits); }

// Not for ever: the lock may be this thread's own.
static void wait_at_exit(void) {
    if (!takeover_is_owner()) return;
    atomic_store(&exits, true);
    for (int i = 0; i < EXIT_MS; ++i) {
        if (takeover_try_lock()) {
            takeover_unlock();
            return;
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

// What is registered last is called first: before the second driver's own end.
void takeover_ends_with_process(void) {
    static bool done;
    if (!done) done = atexit(wait_at_exit) == 0;
}
