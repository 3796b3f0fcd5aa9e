#define _GNU_SOURCE
#include "second/report.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void report_write(const char *outcome, const char *reason, const char *detail, double milliseconds, const steps *of) {
    const char *const path = secure_getenv("MPSGUARD_SECOND_REPORT");
    const int fd = path != NULL ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0600) : -1;
    if (fd < 0) return;
    char line[1024];
    const char *const quote = reason != NULL ? "\"" : "";
    const int length = snprintf(line, sizeof line,
                                "{\"pid\": %d, \"outcome\": \"%s\", \"reason\": %s%s%s, \"detail\": \"%s\", \"milliseconds\": %.3f, "
                                "\"repeated\": %ld, \"alone\": %.3f, \"quiet\": %.3f, \"context\": %.3f, \"memory\": %.3f, "
                                "\"objects\": %.3f, \"replay\": %.3f}\n",
                                (int)getpid(), outcome, quote, reason != NULL ? reason : "null", quote, detail, milliseconds, of->calls,
                                of->alone, of->quiet, of->context, of->memory, of->objects, of->replay);
    if (write(fd, line, (size_t)length) != length) { /* a report that cannot be written has no other reader */ }
    close(fd);
}
