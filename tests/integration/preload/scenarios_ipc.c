// Memory of one process in another one, by the legacy handles.
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

enum { CONTEXT_INVALID = 201, HANDLE_INVALID = 400 };

static void print(const ipc_bytes *handle) {
    for (size_t i = 0; i < sizeof handle->bytes; ++i) printf("%02x", (unsigned char)handle->bytes[i]);
    printf("\n");
    fflush(stdout);
}

static bool scan(ipc_bytes *handle) {
    char line[256];
    if (fgets(line, sizeof line, stdin) == NULL) return false;
    for (size_t i = 0; i < sizeof handle->bytes; ++i) {
        unsigned byte;
        CHECK(sscanf(line + 2 * i, "%2x", &byte) == 1);
        handle->bytes[i] = (char)byte;
    }
    return true;
}

static void wait_for_line(void) {
    char line[256];
    CHECK(fgets(line, sizeof line, stdin) != NULL);
}

// What needs no second process.
static void ipc(const api *cuda) {
    ipc_bytes handle, again;
    uint64_t address = 0;
    bool capable = false;
    const uint64_t ours = allocated(cuda, 4 * MIB), small = allocated(cuda, 100);
    CHECK(is_placed(ours) && is_placed(small));
    CHECK(cuda->cuPointerGetAttribute(&capable, 10, ours) == 0 && capable);
    CHECK(cuda->cuIpcGetMemHandle(&handle, ours) == 0 && cuda->cuIpcGetMemHandle(&again, ours) == 0);
    CHECK(memcmp(&handle, &again, sizeof handle) == 0);
    CHECK(cuda->cuIpcGetMemHandle(&again, small) == 0 && memcmp(&handle, &again, sizeof handle) != 0);
    // As the driver answers to its own process.
    CHECK(cuda->cuIpcOpenMemHandle_v2(&address, handle, 1) == CONTEXT_INVALID);
    CHECK(is_placed(allocated(cuda, 4 * MIB)));
    // Memory of a pool cannot be shared so in plain CUDA either.
    const uint64_t of_pool = ordered(cuda, 4 * MIB, NULL);
    CHECK(cuda->cuIpcGetMemHandle(&handle, of_pool) == 1);
    CHECK(cuda->cuMemFree_v2(ours) == 0 && cuda->cuIpcGetMemHandle(&handle, ours) == 1);
    // The driver's own handles are the driver's affair.
    memset(&handle, 0x77, sizeof handle);
    CHECK(cuda->cuIpcOpenMemHandle_v2(&address, handle, 1) == 0 && !is_placed(address));
    CHECK(cuda->cuIpcCloseMemHandle(address) == 0 && cuda->cuIpcCloseMemHandle(address) == 1);
    // One from a process that there is no more fails at once.
    memset(&handle, 0, sizeof handle);
    memcpy(&handle, "mpsgIPC\1", 8);
    CHECK(cuda->cuIpcOpenMemHandle_v2(&address, handle, 1) == HANDLE_INVALID);
    check_nothing_left(cuda);
}

// Makes the kernel one that does not know SO_PASSRIGHTS (83), for this process.
static void forget_option(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_setsockopt, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsockopt, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 83, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOPROTOOPT),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0);
}

// The first descriptor that is free is the service's.
static void ipc_without_input(const api *cuda) {
    ipc_bytes handle;
    const uint64_t address = allocated(cuda, 4 * MIB);
    CHECK(close(STDIN_FILENO) == 0);
    CHECK(cuda->cuIpcGetMemHandle(&handle, address) == 0);
    check_nothing_left(cuda);
}

// Exports a large and a small allocation, waits for the importer, and looks at what that wrote.
static void ipc_exporter(const api *cuda) {
    ipc_bytes handle;
    if (getenv("WITHOUT_SO_PASSRIGHTS") != NULL) forget_option();
    const uint64_t neighbour = allocated(cuda, 5000);
    const uint64_t large = allocated(cuda, 3 * MIB + 5), small = allocated(cuda, 700);
    memset((void *)(uintptr_t)large, 1, 3 * MIB + 5);
    memset((void *)(uintptr_t)small, 2, 700);
    CHECK(cuda->cuIpcGetMemHandle(&handle, large) == 0);
    print(&handle);
    CHECK(cuda->cuIpcGetMemHandle(&handle, small) == 0);
    print(&handle);
    // A child that has the socket too, and serves no peer.
    const pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    printf("%d\n", (int)child);
    fflush(stdout);
    wait_for_line();
    CHECK(((unsigned char *)(uintptr_t)large)[3 * MIB + 4] == 11 && ((unsigned char *)(uintptr_t)small)[699] == 12);
    CHECK(((unsigned char *)(uintptr_t)neighbour)[4999] == 0x5a);
    CHECK(cuda->cuMemFree_v2(large) == 0 && cuda->cuMemFree_v2(small) == 0 && cuda->cuMemFree_v2(neighbour) == 0);
    check_nothing_left(cuda);
    printf("freed\n");
    fflush(stdout);
    wait_for_line();
}

// Maps both, twice, writes to them, keeps one for as long as the exporter lives and longer.
static void ipc_importer(const api *cuda) {
    ipc_bytes large_handle, small_handle;
    uint64_t large, again, small, start;
    size_t size;
    CHECK(scan(&large_handle) && scan(&small_handle));
    CHECK(cuda->cuIpcOpenMemHandle_v2(&large, large_handle, 1) == 0);
    CHECK(cuda->cuIpcOpenMemHandle_v2(&again, large_handle, 1) == 0 && again == large);
    CHECK(cuda->cuIpcOpenMemHandle_v2(&small, small_handle, 1) == 0);
    CHECK(((unsigned char *)(uintptr_t)large)[0] == 1 && ((unsigned char *)(uintptr_t)large)[3 * MIB + 4] == 1);
    CHECK(((unsigned char *)(uintptr_t)small)[0] == 2 && ((unsigned char *)(uintptr_t)small)[699] == 2);
    CHECK(cuda->cuMemGetAddressRange_v2(&start, &size, large + 100) == 0 && start == large && size == 3 * MIB + 5);
    CHECK(cuda->cuMemFree_v2(large) == 1);
    ((unsigned char *)(uintptr_t)large)[3 * MIB + 4] = 11;
    ((unsigned char *)(uintptr_t)small)[699] = 12;
    CHECK(cuda->cuIpcCloseMemHandle(small) == 0 && cuda->cuIpcCloseMemHandle(small) == 1);
    CHECK(cuda->cuIpcCloseMemHandle(large) == 0);
    printf("written\n");
    fflush(stdout);
    wait_for_line();
    // The exporter has freed it, or is gone: what is mapped stays, and nothing more is to be had.
    CHECK(((unsigned char *)(uintptr_t)large)[3 * MIB + 4] == 11);
    CHECK(cuda->cuIpcOpenMemHandle_v2(&small, small_handle, 1) == HANDLE_INVALID);
    CHECK(cuda->cuIpcCloseMemHandle(large) == 0 && cuda->cuIpcCloseMemHandle(large) == 1);
    CHECK(cuda->cuIpcOpenMemHandle_v2(&large, large_handle, 1) == HANDLE_INVALID);
    check_nothing_left(cuda);
}

// Left to the context that goes.
static void ipc_leaver(const api *cuda) {
    ipc_bytes handle;
    uint64_t address;
    CHECK(scan(&handle));
    CHECK(cuda->cuIpcOpenMemHandle_v2(&address, handle, 1) == 0);
    check_nothing_left(cuda);
}

// Without the preload, or as another user: refused, and at once.
static void ipc_refused(const api *cuda) {
    ipc_bytes handle;
    uint64_t address;
    CHECK(scan(&handle));
    const int result = cuda->cuIpcOpenMemHandle_v2(&address, handle, 1);
    CHECK(result == 1 || result == HANDLE_INVALID);
}

const scenario scenarios_of_ipc[] = {
    {"ipc", ipc}, {"ipc_without_input", ipc_without_input}, {"ipc_exporter", ipc_exporter}, {"ipc_importer", ipc_importer},
    {"ipc_leaver", ipc_leaver}, {"ipc_refused", ipc_refused}, {NULL, NULL},
};
