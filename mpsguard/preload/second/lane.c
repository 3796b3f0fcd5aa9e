#define _GNU_SOURCE
#include "second/lane.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

// As libcuda has it without CUDA_MPS_PIPE_DIRECTORY.
#define DEFAULT_DIRECTORY "/tmp/nvidia-mps"
#define ANSWER_MS 1000

static bool is_there(const char *directory, const char *name, int how) {
    char path[4096 + 16];
    return snprintf(path, sizeof path, "%s/%s", directory, name) < (int)sizeof path && access(path, how) == 0;
}

bool lane_service(char *out, size_t size) {
    // Below a domain's own directory, and beside those of its classes and standbys.
    static const char *const places[] = {"/second", "/../second"};
    const char *const given = secure_getenv("MPSGUARD_SECOND_PIPE_DIRECTORY");
    if (given != NULL) return snprintf(out, size, "%s", given) < (int)size;
    const char *own = secure_getenv("CUDA_MPS_PIPE_DIRECTORY");
    if (own == NULL || *own == '\0') own = DEFAULT_DIRECTORY;
    for (size_t i = 0; i < sizeof places / sizeof *places; ++i)
        if (snprintf(out, size, "%s%s", own, places[i]) < (int)size && is_there(out, "control", W_OK)) return true;
    return false;
}

bool lane_directory(const char *now, char *out, size_t size) {
    const char *const given = secure_getenv("MPSGUARD_SECOND_PIPE_DIRECTORY"), *const own = secure_getenv("CUDA_MPS_PIPE_DIRECTORY");
    if (given == NULL || strcmp(given, now) != 0) return lane_service(out, size);
    return snprintf(out, size, "%s", own != NULL && *own != '\0' ? own : DEFAULT_DIRECTORY) < (int)size;
}

bool lane_takes_ahead(void) {
    char directory[4096];
    if (secure_getenv("MPSGUARD_SECOND_PIPE_DIRECTORY") != NULL) return true;
    // The guard has made the file executable for users that may (mpsguard/guard/broker/public_directory.py).
    return lane_service(directory, sizeof directory) && is_there(directory, "ahead", X_OK);
}

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int connected_to(const char *directory) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (snprintf(address.sun_path, sizeof address.sun_path, "%s/control", directory) >= (int)sizeof address.sun_path) return -1;
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

static bool say(int fd, const void *data, size_t size) { return send(fd, data, size, MSG_NOSIGNAL) == (ssize_t)size; }

// The next message; how long it is, or -1.
static ssize_t hear(int fd, void *room, size_t size, int64_t until) {
    for (;;) {
        const int64_t left = until - now_ms();
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        const int ready = left > 0 ? poll(&wait, 1, (int)left) : 0;
        if (ready < 0 && errno == EINTR) continue;
        return ready > 0 ? recv(fd, room, size, 0) : -1;
    }
}

// Protocol v2 (docs/reference/handshake.md): the greeting, credentials, what this is, and a line; then lines of the answer.
static bool converse(int fd, const char *command, char *answer, size_t size) {
    static const int32_t command_line = 4;
    const int64_t until = now_ms() + ANSWER_MS;
    char word[64], line[64];
    struct { int32_t kind; char text[64]; } reply;
    const ssize_t greeting = hear(fd, word, sizeof word, until);
    if (greeting < 8 || memcmp(word + greeting - 5, "HELL", 5) != 0) return false;
    memcpy(word + greeting - 5, "CRED", 5);
    const int length = snprintf(line, sizeof line, "%s\n", command);
    const int64_t bytes = length + 1;
    if (!say(fd, word, (size_t)greeting) || !say(fd, &command_line, sizeof command_line) || !say(fd, &bytes, sizeof bytes) ||
        !say(fd, line, (size_t)bytes))
        return false;
    const ssize_t got = hear(fd, &reply, sizeof reply, until);
    if (got <= (ssize_t)offsetof(__typeof__(reply), text) || got >= (ssize_t)sizeof reply || reply.kind != 0) return false;
    reply.text[got - (ssize_t)offsetof(__typeof__(reply), text)] = '\0';
    return snprintf(answer, size, "%s", reply.text) < (int)size;
}

bool lane_ask(const char *command, char *answer, size_t size) {
    char directory[4096];
    const int fd = lane_service(directory, sizeof directory) ? connected_to(directory) : -1;
    const bool answered = fd >= 0 && converse(fd, command, answer, size);
    if (fd >= 0) close(fd);
    return answered;
}

bool lane_is_ready(void) {
    char said[16];
    if (secure_getenv("MPSGUARD_SECOND_PIPE_DIRECTORY") != NULL) return true;
    return lane_ask("get_mpsguard_second_lane", said, sizeof said) && strcmp(said, "ready") == 0;
}
