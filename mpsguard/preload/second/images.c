#define _GNU_SOURCE
#include "second/images.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lookup.h"
#include "second/reasons.h"

// Layouts of containers of device code, as the toolkit's public tools (cuobjdump, fatbinary) show them.
#define WRAPPER_MAGIC 0x466243b1u
#define CONTAINER_MAGIC 0xba55ed50u
#define ENTRY_SOURCE 1
#define ENTRY_ELF 2
#define ENTRY_LZ4 0x2000u
#define ENTRY_ZSTD 0x8000u
// No image is that large.
#define MOST_BYTES ((uint64_t)4 << 30)
#define MOST_OPTIONS 16

typedef struct {
    uint32_t magic;
    uint16_t version, header_size;
    uint64_t size;
} container;

typedef struct {
    uint16_t kind, version;
    uint32_t header_size;
    uint64_t size;
    uint32_t compressed, reserved, minor, architecture;
    uint8_t others[8];
    uint64_t flags, reserved_too, uncompressed;
} entry;

struct image {
    const void *code;
    int options[MOST_OPTIONS];
    word values[MOST_OPTIONS];
    word option_count;
    pthread_mutex_t lock;  // of what is below
    bool looked;
    image_variable *variables;
    long count, room;
    bool heap, pointers;
};

static uint32_t magic_of(const void *code) {
    uint32_t magic;
    memcpy(&magic, code, sizeof magic);
    return magic;
}

static const void *unwrapped(const void *code) {
    const void *inside;
    if (magic_of(code) != WRAPPER_MAGIC) return code;
    memcpy(&inside, (const char *)code + 8, sizeof inside);
    return inside;
}

static bool is_elf(const void *code) { return memcmp(code, ELFMAG, SELFMAG) == 0; }

static uint64_t size_of(const void *code) {
    if (magic_of(code) == CONTAINER_MAGIC) {
        const container *const c = code;
        return c->header_size + c->size;
    }
    if (is_elf(code)) {
        const Elf64_Ehdr *const e = code;
        const uint64_t segments = e->e_phoff + (uint64_t)e->e_phnum * e->e_phentsize;
        uint64_t end = e->e_shoff + (uint64_t)e->e_shnum * e->e_shentsize;
        if (segments > end) end = segments;
        for (unsigned i = 0; e->e_shentsize == sizeof(Elf64_Shdr) && i < e->e_shnum; ++i) {
            Elf64_Shdr section;
            memcpy(&section, (const char *)code + e->e_shoff + i * sizeof section, sizeof section);
            if (section.sh_type != SHT_NOBITS && section.sh_offset + section.sh_size > end) end = section.sh_offset + section.sh_size;
        }
        return end;
    }
    return strlen(code) + 1;
}

// Keeps options with numbers that change what is compiled; buffers for texts are left out.
static bool keep_options(image *made, word count, const int *options, const word *values) {
    enum { TIME = 2, INFO = 3, INFO_SIZE = 4, ERRORS = 5, ERRORS_SIZE = 6, VERBOSE = 12, NAMES = 17, NAME_COUNT = 19, REFERENCED = 25, REFERENCED_COUNT = 28, LAST = 34 };
    for (word i = 0; i < count; ++i) {
        const int option = options[i];
        // Lists that may not be there any more, and what is not known.
        if ((option >= REFERENCED && option <= REFERENCED_COUNT) || option > LAST) return false;
        if ((option >= TIME && option <= ERRORS_SIZE) || option == VERBOSE) continue;
        if ((option >= NAMES && option <= NAME_COUNT) || made->option_count == MOST_OPTIONS) return false;
        made->options[made->option_count] = option;
        made->values[made->option_count++] = values[i];
    }
    return true;
}

typedef struct {
    uintptr_t at;
    bool fixed;
} place;

static int find_place(struct dl_phdr_info *library, size_t size, void *argument) {
    (void)size;
    place *const wanted = argument;
    for (int i = 0; i < library->dlpi_phnum; ++i) {
        const ElfW(Phdr) *const part = &library->dlpi_phdr[i];
        const uintptr_t start = library->dlpi_addr + part->p_vaddr;
        if (part->p_type != PT_LOAD || wanted->at < start || wanted->at - start >= part->p_memsz) continue;
        wanted->fixed = (part->p_flags & PF_W) == 0;
        return 1;
    }
    return 0;
}

// Whether nothing can change it, or take it away: what a library has in its read-only part, and the library kept loaded.
static bool stays(const void *code) {
    place at = {(uintptr_t)code, false};
    Dl_info found;
    struct link_map *library = NULL;
    if (dl_iterate_phdr(find_place, &at) == 0 || !at.fixed) return false;
    if (dladdr1(code, &found, (void **)&library, RTLD_DL_LINKMAP) == 0 || library == NULL) return false;
    static _Atomic uintptr_t last;  // most programs load many from one
    if (library->l_name[0] == '\0' || last == library->l_addr) return true;
    if (lookup_dlopen == NULL || lookup_dlopen(library->l_name, RTLD_LAZY | RTLD_NOLOAD) == NULL) return false;
    last = library->l_addr;
    return true;
}

image *images_keep(const void *code, word count, const int *options, const word *values) {
    image *const made = calloc(1, sizeof *made);
    if (made == NULL) {
        reasons_hold(REASON_no_memory);
        return NULL;
    }
    pthread_mutex_init(&made->lock, NULL);
    if (!keep_options(made, count, options, values)) {
        reasons_hold(REASON_image_options);
        free(made);
        return NULL;
    }
    const void *const inside = unwrapped(code);
    if (stays(inside)) {
        made->code = inside;
        return made;
    }
    const uint64_t size = size_of(inside);
    void *const copy = size <= MOST_BYTES ? malloc(size) : NULL;
    if (copy == NULL) {
        reasons_hold(REASON_no_memory);
        free(made);
        return NULL;
    }
    made->code = memcpy(copy, inside, size);
    return made;
}

void *images_read(const char *path) {
    const int fd = path != NULL ? open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY) : -1;
    struct stat of;
    char *bytes = NULL;
    size_t got = 0;
    if (fd >= 0 && fstat(fd, &of) == 0 && S_ISREG(of.st_mode) && (uint64_t)of.st_size <= MOST_BYTES)
        bytes = malloc((size_t)of.st_size + 1);
    for (ssize_t more = 1; bytes != NULL && more > 0 && got < (size_t)of.st_size; got += (size_t)(more > 0 ? more : 0))
        more = read(fd, bytes + got, (size_t)of.st_size - got);
    if (fd >= 0) close(fd);
    if (bytes == NULL || got < sizeof(Elf64_Ehdr)) return free(bytes), NULL;
    // Source code ends with it.
    bytes[got] = '\0';
    return bytes;
}

mg_result images_load_module(const driver_copy *copy, const image *code, word *module) {
    return CALL(copy, cuModuleLoadDataEx, WORD(module), WORD(code->code), code->option_count, WORD(code->options),
                WORD(code->values));
}

mg_result images_load_library(const driver_copy *copy, const image *code, word *library) {
    return CALL(copy, cuLibraryLoadData, WORD(library), WORD(code->code), WORD(code->options), WORD(code->values),
                code->option_count, 0, 0, 0);
}

static bool add_variable(image *i, const char *name, uint64_t size, bool constant) {
    for (long k = 0; k < i->count; ++k) {
        if (strcmp(i->variables[k].name, name) == 0) return true;
    }
    if (i->count == i->room) {
        const long room = i->room > 0 ? 2 * i->room : 8;
        image_variable *const more = realloc(i->variables, (size_t)room * sizeof *more);
        if (more == NULL) return false;
        i->variables = more;
        i->room = room;
    }
    char *const own = strdup(name);
    if (own == NULL) return false;
    i->variables[i->count++] = (image_variable){own, size, constant};
    return true;
}

static bool is_constant_section(const char *name) { return strncmp(name, ".nv.constant3", 13) == 0; }

static bool is_variable_section(const char *name) {
    return strcmp(name, ".nv.global") == 0 || strcmp(name, ".nv.global.init") == 0 || is_constant_section(name);
}

static bool read_elf(image *i, const unsigned char *bytes, uint64_t size) {
    const Elf64_Ehdr *const head = (const void *)bytes;
    if (size < sizeof *head || !is_elf(bytes) || head->e_shentsize != sizeof(Elf64_Shdr)) return false;
    const uint64_t table = head->e_shoff, sections = head->e_shnum;
    if (table > size || sections * sizeof(Elf64_Shdr) > size - table || head->e_shstrndx >= sections) return false;
    const Elf64_Shdr *const section = (const void *)(bytes + table);
    const Elf64_Shdr *const titles = &section[head->e_shstrndx];
    if (titles->sh_offset > size || titles->sh_size > size - titles->sh_offset || titles->sh_size == 0 ||
        bytes[titles->sh_offset + titles->sh_size - 1] != '\0')
        return false;
    for (uint64_t k = 0; k < sections; ++k) {
        if (section[k].sh_name >= titles->sh_size) return false;
        const bool relocates = section[k].sh_type == SHT_RELA || section[k].sh_type == SHT_REL;
        if (relocates && section[k].sh_size > 0 && section[k].sh_info < sections &&
            section[section[k].sh_info].sh_name < titles->sh_size &&
            is_variable_section((const char *)bytes + titles->sh_offset + section[section[k].sh_info].sh_name))
            i->pointers = true;
        if (section[k].sh_type != SHT_SYMTAB) continue;
        if (section[k].sh_link >= sections) return false;
        const Elf64_Shdr *const list = &section[k], *const texts = &section[list->sh_link];
        if (texts->sh_size == 0 || list->sh_offset > size || list->sh_size > size - list->sh_offset ||
            texts->sh_offset > size || texts->sh_size > size - texts->sh_offset ||
            bytes[texts->sh_offset + texts->sh_size - 1] != '\0')
            return false;
        const Elf64_Sym *const symbols = (const void *)(bytes + list->sh_offset);
        for (uint64_t n = 0; n < list->sh_size / sizeof *symbols; ++n) {
            const Elf64_Sym *const symbol = &symbols[n];
            if (symbol->st_name >= texts->sh_size) return false;
            const char *const name = (const char *)bytes + texts->sh_offset + symbol->st_name;
            if (strcmp(name, "malloc") == 0 || strcmp(name, "__nv_malloc") == 0 || strcmp(name, "cudaMalloc") == 0) i->heap = true;
            if (ELF64_ST_TYPE(symbol->st_info) != STT_OBJECT || symbol->st_size == 0 || symbol->st_shndx >= sections)
                continue;
            const uint64_t title = titles->sh_offset + section[symbol->st_shndx].sh_name;
            if (title < size && is_variable_section((const char *)bytes + title) &&
                !add_variable(i, name, symbol->st_size, is_constant_section((const char *)bytes + title)))
                return false;
        }
    }
    return true;
}

// The system's own libraries, where they are there.
static void *_Atomic zstd, *_Atomic lz4;

void images_prepare(void) {
    if (lookup_dlopen == NULL) return;
    zstd = lookup_dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
    lz4 = lookup_dlopen("liblz4.so.1", RTLD_NOW | RTLD_LOCAL);
}

static bool unpack(uint64_t flags, void *to, uint64_t size, const void *from, uint64_t length) {
    if (flags & ENTRY_ZSTD) {
        void *const library = zstd;
        void *const found = library != NULL ? lookup_dlsym(library, "ZSTD_decompress") : NULL;
        size_t (*decompress)(void *, size_t, const void *, size_t);
        memcpy(&decompress, &found, sizeof found);
        return found != NULL && decompress(to, size, from, length) == size;
    }
    void *const library = lz4;
    void *const found = library != NULL ? lookup_dlsym(library, "LZ4_decompress_safe") : NULL;
    int (*decompress)(const char *, char *, int, int);
    memcpy(&decompress, &found, sizeof found);
    return found != NULL && size <= INT32_MAX && length <= INT32_MAX &&
           decompress(from, to, (int)length, (int)size) == (int)size;
}

static bool is_of_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$';
}

// Whether these are instructions' words, as in `ld.global`; those of a declaration may follow one another without a space.
static bool is_instruction(const char *text, const char *at) {
    static const char *const linkages[] = {".visible", ".extern", ".weak", ".common", ".internal"};
    if (at == text || !is_of_word(at[-1])) return false;
    for (size_t i = 0; i < sizeof linkages / sizeof *linkages; ++i) {
        const size_t length = strlen(linkages[i]);
        if ((size_t)(at - text) >= length && memcmp(at - length, linkages[i], length) == 0) return false;
    }
    return true;
}

// Source code: whether it has no variable at all, and allocates nothing, is all that is read of it.
static bool has_no_variables(image *i, const char *text, uint64_t size) {
    static const char *const words[] = {".global", ".const"};
    const char *const end = text + strnlen(text, size);
    if (memmem(text, (size_t)(end - text), "alloc", 5) != NULL) i->heap = true;
    for (size_t w = 0; w < sizeof words / sizeof *words; ++w) {
        const size_t length = strlen(words[w]);
        for (const char *at = text; (at = memmem(at, (size_t)(end - at), words[w], length)) != NULL; at += length) {
            if (!is_instruction(text, at) && at + length < end && !is_of_word(at[length])) return false;
        }
    }
    return true;
}

static bool read_part(image *i, uint16_t what, const unsigned char *bytes, uint64_t size) {
    return what == ENTRY_ELF ? read_elf(i, bytes, size) : has_no_variables(i, (const char *)bytes, size);
}

static bool read_entry(image *i, const entry *e, const unsigned char *bytes) {
    const bool packed = (e->flags & (ENTRY_LZ4 | ENTRY_ZSTD)) != 0;
    if (!packed) return read_part(i, e->kind, bytes, e->size);
    if (e->uncompressed > MOST_BYTES || e->compressed > e->size) return false;
    unsigned char *const room = malloc(e->uncompressed);
    const bool read = room != NULL && unpack(e->flags, room, e->uncompressed, bytes, e->compressed) &&
                      read_part(i, e->kind, room, e->uncompressed);
    free(room);
    return read;
}

// All architectures: which one the driver takes is its own affair, and a name that it does not know does no harm.
static bool read_container(image *i, const unsigned char *bytes, bool source) {
    const container *const c = (const void *)bytes;
    bool any = false;
    for (uint64_t at = c->header_size, end = c->header_size + c->size; at + sizeof(entry) <= end;) {
        entry e;
        memcpy(&e, bytes + at, sizeof e);
        if (e.size > end - at - e.header_size) return false;
        const bool wanted = e.kind == (source ? ENTRY_SOURCE : ENTRY_ELF);
        if (wanted && !read_entry(i, &e, bytes + at + e.header_size)) return false;
        any = any || wanted;
        at += e.header_size + e.size;
    }
    return any;
}

const image_variable *images_variables(image *i, long *count) {
    pthread_mutex_lock(&i->lock);
    if (!i->looked) {
        i->looked = true;
        // Source code counts where there is nothing else: then the driver compiles it.
        const bool read = magic_of(i->code) == CONTAINER_MAGIC
                              ? read_container(i, i->code, false) || (i->count == 0 && read_container(i, i->code, true))
                          : is_elf(i->code) ? read_elf(i, i->code, size_of(i->code))
                                            : has_no_variables(i, i->code, MOST_BYTES);
        if (!read) i->count = -1;
    }
    *count = i->count;
    pthread_mutex_unlock(&i->lock);
    return i->variables;
}

bool images_use_heap(const image *i) { return i->heap; }
bool images_have_pointers(const image *i) { return i->pointers; }
