#define _GNU_SOURCE
#include "second/copies.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "lookup.h"

// libcuda binds an abstract socket of this name and the process's number, one for each process (seen with 580).
#define SOCKET_NAME "cuda-uvmfd-"
#if defined(__x86_64__)
#define SLOT_CALL R_X86_64_JUMP_SLOT
#define SLOT_DATA R_X86_64_GLOB_DAT
#else
#define SLOT_CALL R_AARCH64_JUMP_SLOT
#define SLOT_DATA R_AARCH64_GLOB_DAT
#endif

driver_copy first_copy = {.directory = ""};
static driver_copy others[MOST_COPIES];
static unsigned loaded;
static _Atomic(driver_copy *) at_hand = &first_copy;
static __thread driver_copy *at_work __attribute__((tls_model("initial-exec")));

driver_copy *copies_at_hand(void) { return atomic_load_explicit(&at_hand, memory_order_acquire); }
void copies_go_on_with(driver_copy *copy) { atomic_store(&at_hand, copy); }
const driver_copy *copies_numbered(unsigned number) { return &others[number - 1]; }
driver_copy *copies_at_work(void) { return at_work != NULL ? at_work : copies_at_hand(); }
void copies_work_with(driver_copy *copy) { at_work = copy; }

bool copies_is_loss(mg_result result) { return result == 700 || (result >= 714 && result <= 719); }

static const char *const names[FUNCTION_COUNT] = {
#define DRIVER_FUNCTION(name, ...) #name,
#include "second/functions.h"
#undef DRIVER_FUNCTION
};

const char *copies_name(function_id id) { return names[id]; }

typedef mg_result result;
#define W word
mg_result copies_call(const driver_copy *copy, function_id id, const word *w, size_t count) {
    void *const f = copy->function[id];
    if (f == NULL) return MG_NOT_SUPPORTED;
    switch (count) {
        case 0: return ((result(*)(void))f)();
        case 1: return ((result(*)(W))f)(w[0]);
        case 2: return ((result(*)(W, W))f)(w[0], w[1]);
        case 3: return ((result(*)(W, W, W))f)(w[0], w[1], w[2]);
        case 4: return ((result(*)(W, W, W, W))f)(w[0], w[1], w[2], w[3]);
        case 5: return ((result(*)(W, W, W, W, W))f)(w[0], w[1], w[2], w[3], w[4]);
        case 6: return ((result(*)(W, W, W, W, W, W))f)(w[0], w[1], w[2], w[3], w[4], w[5]);
        default: break;
    }
    // What a callee does not have as a parameter it does not look at.
    return ((result(*)(W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W))f)(
        w[0], w[1], w[2], w[3], w[4], w[5], w[6], count > 7 ? w[7] : 0, count > 8 ? w[8] : 0, count > 9 ? w[9] : 0,
        count > 10 ? w[10] : 0, count > 11 ? w[11] : 0, count > 12 ? w[12] : 0, count > 13 ? w[13] : 0,
        count > 14 ? w[14] : 0, count > 15 ? w[15] : 0);
}
#undef W

static void find_all(driver_copy *copy, void *handle) {
    for (size_t i = 0; i < FUNCTION_COUNT; ++i)
        if (copy->function[i] == NULL) copy->function[i] = lookup_dlsym(handle, names[i]);
}

bool copies_find_first(bool next) {
    lookup_find_glibc();
    if (lookup_dlsym == NULL || lookup_dlopen == NULL) return false;
    void *const handle = lookup_dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    // One under another name: see lookup.c.
    if (next || handle == NULL) {
        if (lookup_dlsym(RTLD_NEXT, names[FUNCTION_cuInit]) == NULL && handle == NULL) return false;
        find_all(&first_copy, RTLD_NEXT);
    }
    if (handle != NULL) find_all(&first_copy, handle);
    return first_copy.function[FUNCTION_cuInit] != NULL;
}

static FILE *tmpfile_in_memory(void) {
    const int fd = memfd_create("mpsguard-maps", MFD_CLOEXEC);
    FILE *const file = fd >= 0 ? fdopen(fd, "w+") : NULL;
    if (file == NULL && fd >= 0) close(fd);
    return file;
}

// Each copy's name for the socket has another end.
static int bind_with(const char *end, int fd, const struct sockaddr *address, socklen_t length) {
    struct sockaddr_un changed = {0};
    const size_t path = offsetof(struct sockaddr_un, sun_path), most = sizeof changed - 8;
    if (address == NULL || address->sa_family != AF_UNIX || length <= path + sizeof SOCKET_NAME || length > most)
        return bind(fd, address, length);
    memcpy(&changed, address, length);
    if (memcmp(changed.sun_path, "\0" SOCKET_NAME, sizeof SOCKET_NAME) != 0) return bind(fd, address, length);
    // The name is counted with a NUL at its end.
    const size_t name = strnlen(changed.sun_path + 1, length - path - 1);
    memcpy(changed.sun_path + 1 + name, end, strlen(end) + 1);
    return bind(fd, (const struct sockaddr *)&changed, (socklen_t)(path + 1 + name + strlen(end) + 1));
}

// What a copy reads of the environment; empty: what there is. And the end of its name for the socket.
static struct {
    char pipe_directory[4096], devices[64], share[16], name_end[16];
} environments[MOST_COPIES];

static char *getenv_of(unsigned i, const char *name) {
    if (environments[i].pipe_directory[0] != '\0' && strcmp(name, "CUDA_MPS_PIPE_DIRECTORY") == 0) return environments[i].pipe_directory;
    if (environments[i].devices[0] != '\0' && strcmp(name, "CUDA_VISIBLE_DEVICES") == 0) return environments[i].devices;
    if (environments[i].share[0] != '\0' && strcmp(name, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") == 0) return environments[i].share;
    return getenv(name);
}

// Which copy calls is known by the function that it was given.
#define EACH_COPY(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define OWN_FUNCTIONS(i)                                                                                                           \
    static int bind_##i(int fd, const struct sockaddr *address, socklen_t length) { return bind_with(environments[i].name_end, fd, address, length); } \
    static char *getenv_##i(const char *name) { return getenv_of(i, name); }
EACH_COPY(OWN_FUNCTIONS)
#undef OWN_FUNCTIONS

// Addresses that the first copy has reserved for the memory of both.
static uintptr_t shared_start, shared_end;

void copies_share_addresses(uint64_t start, uint64_t size) {
    shared_start = start;
    shared_end = start + size;
}

static bool is_shared(const void *at, size_t size) {
    return (uintptr_t)at >= shared_start && (uintptr_t)at < shared_end && size <= shared_end - (uintptr_t)at;
}

// A reservation is a mapping without access. The one that is there does for both copies, with the zones in it.
static void *mmap_other(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
    if (protection == PROT_NONE && is_shared(at, size)) return at;
    return mmap(at, size, protection, flags, fd, offset);
}

static int munmap_other(void *at, size_t size) { return is_shared(at, size) ? 0 : munmap(at, size); }

// libcuda reserves nothing where it reads that something is mapped, so it does not read of the shared addresses.
static FILE *fopen_other(const char *path, const char *mode) {
    FILE *const real = fopen(path, mode);
    if (real == NULL || strcmp(path, "/proc/self/maps") != 0) return real;
    FILE *const left = tmpfile_in_memory();
    char *line = NULL;
    size_t room = 0;
    while (left != NULL && getline(&line, &room, real) > 0) {
        unsigned long start;
        if (sscanf(line, "%lx-", &start) != 1 || !is_shared(POINTER(start), 1)) fputs(line, left);
    }
    free(line);
    if (left == NULL || ferror(left) || fseek(left, 0, SEEK_SET) != 0) {
        if (left != NULL) fclose(left);
        rewind(real);
        return real;
    }
    fclose(real);
    return left;
}

#define BIND_OF(i) (void *)bind_##i,
#define GETENV_OF(i) (void *)getenv_##i,
#define SAME(function) {(void *)(function), (void *)(function), (void *)(function), (void *)(function), (void *)(function), (void *)(function), (void *)(function), (void *)(function)}
static const struct {
    const char *name;
    void *function[MOST_COPIES];
    bool needed;
} replaced[] = {
    {"bind", {EACH_COPY(BIND_OF)}, true},
    {"getenv", {EACH_COPY(GETENV_OF)}, true},
    {"secure_getenv", {EACH_COPY(GETENV_OF)}, false},
    {"mmap", SAME(mmap_other), true},
    {"mmap64", SAME(mmap_other), false},
    {"munmap", SAME(munmap_other), true},
    {"fopen", SAME(fopen_other), true},
    {"fopen64", SAME(fopen_other), false},
};
enum { REPLACED = sizeof replaced / sizeof *replaced };

// What the loader has made read-only after relocation; other slots share their pages with data that is written.
typedef struct {
    uintptr_t start, end;
} fixed_part;

static fixed_part fixed_part_of(const struct link_map *map) {
    const ElfW(Ehdr) *const head = POINTER(map->l_addr);
    const ElfW(Phdr) *const parts = POINTER(map->l_addr + head->e_phoff);
    for (size_t i = 0; i < head->e_phnum; ++i) {
        if (parts[i].p_type != PT_GNU_RELRO) continue;
        return (fixed_part){map->l_addr + parts[i].p_vaddr, map->l_addr + parts[i].p_vaddr + parts[i].p_memsz};
    }
    return (fixed_part){0, 0};
}

static bool set_slot(fixed_part fixed, uintptr_t *slot, void *function) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)slot & ~(page - 1);
    const bool is_fixed = (uintptr_t)slot >= fixed.start && (uintptr_t)slot < fixed.end;
    if (is_fixed && mprotect(POINTER(start), page, PROT_READ | PROT_WRITE) != 0) return false;
    *slot = (uintptr_t)function;
    return !is_fixed || mprotect(POINTER(start), page, PROT_READ) == 0;
}

// The copy's own slots alone: the rest of the process keeps its bind and its mmap.
static bool replace_imports(unsigned of, void *handle) {
    struct link_map *map;
    const ElfW(Rela) * lists[2] = {NULL, NULL};
    size_t lengths[2] = {0, 0};
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    bool done[REPLACED] = {false};
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0) return false;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
        switch (entry->d_tag) {
            case DT_RELA: lists[0] = POINTER(entry->d_un.d_ptr); break;
            case DT_RELASZ: lengths[0] = entry->d_un.d_val / sizeof(ElfW(Rela)); break;
            case DT_JMPREL: lists[1] = POINTER(entry->d_un.d_ptr); break;
            case DT_PLTRELSZ: lengths[1] = entry->d_un.d_val / sizeof(ElfW(Rela)); break;
            case DT_SYMTAB: symbols = POINTER(entry->d_un.d_ptr); break;
            case DT_STRTAB: strings = POINTER(entry->d_un.d_ptr); break;
            default: break;
        }
    }
    if (symbols == NULL || strings == NULL) return false;
    const fixed_part fixed = fixed_part_of(map);
    for (size_t list = 0; list < 2; ++list) {
        for (size_t i = 0; i < (lists[list] != NULL ? lengths[list] : 0); ++i) {
            const ElfW(Rela) *const slot = &lists[list][i];
            const unsigned kind = ELF64_R_TYPE(slot->r_info);
            if (kind != SLOT_CALL && kind != SLOT_DATA) continue;
            const char *const name = strings + symbols[ELF64_R_SYM(slot->r_info)].st_name;
            for (size_t k = 0; k < REPLACED; ++k) {
                if (strcmp(name, replaced[k].name) != 0) continue;
                if (!set_slot(fixed, POINTER(map->l_addr + slot->r_offset), replaced[k].function[of])) return false;
                done[k] = true;
            }
        }
    }
    for (size_t k = 0; k < REPLACED; ++k)
        if (replaced[k].needed && !done[k]) return false;
    return true;
}

// A file of its own: the loader knows files by their inode, and gives the first copy for the same one.
static int copy_of(const char *path) {
    const int from = open(path, O_RDONLY | O_CLOEXEC);
    if (from < 0) return -1;
    struct stat file;
    const int to = memfd_create("mpsguard-second-driver", MFD_CLOEXEC);
    bool done = to >= 0 && fstat(from, &file) == 0 && ftruncate(to, file.st_size) == 0;
    void *const room = done ? mmap(NULL, (size_t)file.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, to, 0) : MAP_FAILED;
    done = room != MAP_FAILED;
    for (off_t at = 0; done && at < file.st_size;) {
        const ssize_t got = pread(from, (char *)room + at, (size_t)(file.st_size - at), at);
        done = got > 0 || (got < 0 && errno == EINTR);
        if (got > 0) at += got;
    }
    if (room != MAP_FAILED) munmap(room, (size_t)file.st_size);
    close(from);
    if (done) return to;
    if (to >= 0) close(to);
    return -1;
}

int copies_left(void) { return MOST_COPIES - (int)loaded; }

driver_copy *copies_load(copy_place place, const char *directory, const char *devices, unsigned share, int device) {
    char path[64];
    Dl_info found;
    if (copies_left() == 0) return NULL;
    char *const real = dladdr(first_copy.function[FUNCTION_cuInit], &found) ? realpath(found.dli_fname, NULL) : NULL;
    if (real == NULL) return NULL;
    const int fd = copy_of(real);
    free(real);
    if (fd < 0) return NULL;
    // Kept open: libcuda opens itself again, by the path that the loader knows (580).
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    void *const handle = lookup_dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        close(fd);
        return NULL;
    }
    const unsigned i = loaded++;
    driver_copy *const made = &others[i];
    made->number = i + 1;
    made->place = place;
    made->device = (word)device;
    snprintf(environments[i].name_end, sizeof environments[i].name_end, "-%u", i + 2);
    if (share > 0) snprintf(environments[i].share, sizeof environments[i].share, "%u.%02u", share / 100, share % 100);
    snprintf(environments[i].pipe_directory, sizeof environments[i].pipe_directory, "%s", directory != NULL ? directory : "");
    snprintf(environments[i].devices, sizeof environments[i].devices, "%s", devices != NULL ? devices : "");
    made->directory = environments[i].pipe_directory;
    made->share = share;
    if (!replace_imports(i, handle)) return NULL;
    find_all(made, handle);
    return made->function[FUNCTION_cuInit] != NULL ? made : NULL;
}
