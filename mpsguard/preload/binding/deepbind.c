#define _GNU_SOURCE
#include "binding/deepbind.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "counters.h"
#include "binding/hook_table.h"
#include "lookup.h"

#if defined(__x86_64__)
#define SLOT_CALL R_X86_64_JUMP_SLOT
#define SLOT_DATA R_X86_64_GLOB_DAT
#define SLOT_WORD R_X86_64_64
#else
#define SLOT_CALL R_AARCH64_JUMP_SLOT
#define SLOT_DATA R_AARCH64_GLOB_DAT
#define SLOT_WORD R_AARCH64_ABS64
#endif

// What is still to be set: nothing, all slots, or all but those for dlsym (while there is no driver).
enum { NOTHING, ALL, FUNCTIONS };
static _Atomic int behind;

typedef struct {
    uintptr_t base;
    const ElfW(Dyn) * dynamic;      // NULL: it has none
    const ElfW(Rela) * lists[2];
    size_t lengths[2];
    const ElfW(Sym) * symbols;
    const char *names;
    uintptr_t low, high;            // of the object's segments
    uintptr_t fixed_low, fixed_high;  // what is read-only after relocation
} object;

// What a look through all libraries needs to know. The loader asks us for each under a lock of its own, so nothing may be
// asked of the loader then: another thread's dlopen holds the locks in the other order.
typedef struct {
    const mg_driver *driver;            // or NULL
    uintptr_t glibc_low, glibc_high;  // of the library that has dlsym; equal until it is found
} look;

// Our function for a symbol of that name, if the slot leads to the one it stands for or has not been bound yet.
static void *replacement(const look *l, const object *o, const char *name, uintptr_t value) {
    const int unbound = value >= o->low && value < o->high;
    if (strcmp(name, "dlsym") == 0)
        return unbound || (value >= l->glibc_low && value < l->glibc_high) ? (void *)dlsym : NULL;
    if (unbound) return hook_table_named(name);
    return l->driver != NULL ? hook_table_find(l->driver, name, (const void *)value) : NULL;
}

static void set(const object *o, uintptr_t *slot, void *function) {
    if ((void *)*slot == function) return;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)slot & ~(page - 1);
    const int fixed = (uintptr_t)slot >= o->fixed_low && (uintptr_t)slot < o->fixed_high;
    if (fixed && mprotect((void *)start, page, PROT_READ | PROT_WRITE) != 0) return;
    *slot = (uintptr_t)function;
    if (fixed) mprotect((void *)start, page, PROT_READ);
    counter_add(COUNT_rebound);
}

static void read_dynamic(object *o) {
    // glibc has made these addresses absolute in memory on both machines, except in the vdso, which has no slots.
    size_t size = 0, call_size = 0;
    for (const ElfW(Dyn) *entry = o->dynamic; entry->d_tag != DT_NULL; ++entry) {
        switch (entry->d_tag) {
            case DT_RELA: o->lists[0] = (const ElfW(Rela) *)entry->d_un.d_ptr; break;
            case DT_RELASZ: size = entry->d_un.d_val; break;
            case DT_JMPREL: o->lists[1] = (const ElfW(Rela) *)entry->d_un.d_ptr; break;
            case DT_PLTRELSZ: call_size = entry->d_un.d_val; break;
            case DT_SYMTAB: o->symbols = (const ElfW(Sym) *)entry->d_un.d_ptr; break;
            case DT_STRTAB: o->names = (const char *)entry->d_un.d_ptr; break;
            default: break;
        }
    }
    o->lengths[0] = size / sizeof(ElfW(Rela));
    o->lengths[1] = call_size / sizeof(ElfW(Rela));
}

static object object_of(const struct dl_phdr_info *info) {
    object o = {.base = info->dlpi_addr, .low = UINTPTR_MAX};
    for (size_t i = 0; i < info->dlpi_phnum; ++i) {
        const ElfW(Phdr) *const part = &info->dlpi_phdr[i];
        const uintptr_t start = o.base + part->p_vaddr, end = start + part->p_memsz;
        if (part->p_type == PT_LOAD && start < o.low) o.low = start;
        if (part->p_type == PT_LOAD && end > o.high) o.high = end;
        if (part->p_type == PT_DYNAMIC) o.dynamic = (const ElfW(Dyn) *)start;
        if (part->p_type == PT_GNU_RELRO) o.fixed_low = start, o.fixed_high = end;
    }
    return o;
}

static int is_inside(const object *o, const void *address) {
    return (uintptr_t)address >= o->low && (uintptr_t)address < o->high;
}

static int find_glibc(struct dl_phdr_info *info, size_t size, void *argument) {
    (void)size;
    look *const l = argument;
    const object o = object_of(info);
    if (!is_inside(&o, (const void *)lookup_dlsym)) return 0;
    l->glibc_low = o.low;
    l->glibc_high = o.high;
    return 1;
}

static int bind(struct dl_phdr_info *info, size_t size, void *argument) {
    (void)size;
    const look *const l = argument;
    object o = object_of(info);
    // Not the main program (its slots cannot be bound past us), nor the driver, glibc and ourselves.
    if (info->dlpi_name == NULL || info->dlpi_name[0] == '\0' || o.dynamic == NULL) return 0;
    if ((l->driver != NULL && is_inside(&o, (const void *)l->driver->mem_alloc_v2)) ||
        is_inside(&o, (const void *)deepbind_catch_up) || is_inside(&o, (const void *)lookup_dlsym))
        return 0;
    read_dynamic(&o);
    if (o.symbols == NULL || o.names == NULL || (uintptr_t)o.symbols < o.low) return 0;
    for (size_t list = 0; list < 2; ++list) {
        for (size_t i = 0; i < (o.lists[list] != NULL ? o.lengths[list] : 0); ++i) {
            const ElfW(Rela) *const slot = &o.lists[list][i];
            const unsigned kind = ELF64_R_TYPE(slot->r_info);
            const ElfW(Sym) *const symbol = &o.symbols[ELF64_R_SYM(slot->r_info)];
            const int is_function = kind == SLOT_CALL || kind == SLOT_DATA || (kind == SLOT_WORD && slot->r_addend == 0);
            if (!is_function || symbol->st_shndx != SHN_UNDEF) continue;
            uintptr_t *const at = (uintptr_t *)(o.base + slot->r_offset);
            void *const function = replacement(l, &o, o.names + symbol->st_name, *at);
            if (function != NULL) set(&o, at, function);
        }
    }
    return 0;
}

static void catch_up(void) {
    // Without a driver there is only dlsym to set: by that way the library will ask for the rest.
    const mg_driver *const d = lookup_driver();
    if (d == NULL && atomic_load_explicit(&behind, memory_order_relaxed) == FUNCTIONS) return;
    atomic_store_explicit(&behind, d != NULL ? NOTHING : FUNCTIONS, memory_order_relaxed);
    look all = {.driver = d};
    dl_iterate_phdr(find_glibc, &all);
    dl_iterate_phdr(bind, &all);
}

LOOKUP_EARLY void deepbind_catch_up(void) {
    if (atomic_load_explicit(&behind, memory_order_relaxed) != NOTHING) catch_up();
}

void *deepbind_open(const char *file, int mode) {
    atomic_store_explicit(&behind, ALL, memory_order_relaxed);
    // A bare name is looked for along the caller's RUNPATH, so the caller must ask for it itself.
    if (file == NULL || strchr(file, '/') == NULL) return NULL;
    void *const handle = lookup_dlopen(file, mode);
    if (handle != NULL) deepbind_catch_up();
    return handle;
}
