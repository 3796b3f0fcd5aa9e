#define _GNU_SOURCE
#include "deepbind.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "counters.h"
#include "hook_table.h"
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
    const ElfW(Rela) * lists[2];
    size_t lengths[2];
    const ElfW(Sym) * symbols;
    const char *names;
    uintptr_t low, high;            // of the object's segments
    uintptr_t fixed_low, fixed_high;  // what is read-only after relocation
} object;

static int same_object(const void *one, const void *other) {
    Dl_info first, second;
    return dladdr(one, &first) && dladdr(other, &second) && first.dli_fbase == second.dli_fbase;
}

// Our function for a symbol of that name, if the slot leads to the one it stands for or has not been bound yet.
static void *replacement(const mg_driver *d, const object *o, const char *name, uintptr_t value) {
    const int unbound = value >= o->low && value < o->high;
    if (strcmp(name, "dlsym") == 0)
        return unbound || same_object((const void *)value, (const void *)lookup_dlsym) ? (void *)dlsym : NULL;
    if (unbound) return hook_table_named(name);
    return d != NULL ? hook_table_find(d, name, (const void *)value) : NULL;
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

static void read_dynamic(object *o, const ElfW(Dyn) * entry) {
    // glibc has made these addresses absolute in memory on both machines, except in the vdso, which has no slots.
    size_t size = 0, call_size = 0;
    for (; entry->d_tag != DT_NULL; ++entry) {
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

static int bind(struct dl_phdr_info *info, size_t size, void *argument) {
    (void)size;
    const mg_driver *const d = argument;
    object o = {.base = info->dlpi_addr, .low = UINTPTR_MAX};
    const ElfW(Dyn) *dynamic = NULL;
    for (size_t i = 0; i < info->dlpi_phnum; ++i) {
        const ElfW(Phdr) *const part = &info->dlpi_phdr[i];
        const uintptr_t start = o.base + part->p_vaddr, end = start + part->p_memsz;
        if (part->p_type == PT_LOAD && start < o.low) o.low = start;
        if (part->p_type == PT_LOAD && end > o.high) o.high = end;
        if (part->p_type == PT_DYNAMIC) dynamic = (const ElfW(Dyn) *)start;
        if (part->p_type == PT_GNU_RELRO) o.fixed_low = start, o.fixed_high = end;
    }
    const uintptr_t driver = d != NULL ? (uintptr_t)d->cuMemAlloc_v2 : 0, own = (uintptr_t)deepbind_catch_up,
                    glibc = (uintptr_t)lookup_dlsym;
    // Not the main program, whose slots cannot be bound past us, nor the driver, glibc and ourselves.
    if (info->dlpi_name == NULL || info->dlpi_name[0] == '\0' || dynamic == NULL) return 0;
    if ((driver >= o.low && driver < o.high) || (own >= o.low && own < o.high) || (glibc >= o.low && glibc < o.high))
        return 0;
    read_dynamic(&o, dynamic);
    if (o.symbols == NULL || o.names == NULL || (uintptr_t)o.symbols < o.low) return 0;
    for (size_t list = 0; list < 2; ++list) {
        for (size_t i = 0; i < (o.lists[list] != NULL ? o.lengths[list] : 0); ++i) {
            const ElfW(Rela) *const slot = &o.lists[list][i];
            const unsigned kind = ELF64_R_TYPE(slot->r_info);
            const ElfW(Sym) *const symbol = &o.symbols[ELF64_R_SYM(slot->r_info)];
            const int is_function = kind == SLOT_CALL || kind == SLOT_DATA || (kind == SLOT_WORD && slot->r_addend == 0);
            if (!is_function || symbol->st_shndx != SHN_UNDEF) continue;
            uintptr_t *const at = (uintptr_t *)(o.base + slot->r_offset);
            void *const function = replacement(d, &o, o.names + symbol->st_name, *at);
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
    dl_iterate_phdr(bind, (void *)(uintptr_t)d);
}

LOOKUP_EARLY void deepbind_catch_up(void) {
    if (atomic_load_explicit(&behind, memory_order_relaxed) != NOTHING) catch_up();
}

void *deepbind_open(const char *file, int mode) {
    atomic_store_explicit(&behind, ALL, memory_order_relaxed);
    // A bare name is looked for along the caller's RUNPATH, so it must be the caller who asks.
    if (file == NULL || strchr(file, '/') == NULL) return NULL;
    void *const handle = lookup_dlopen(file, mode);
    if (handle != NULL) deepbind_catch_up();
    return handle;
}
