// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * The page walker of Pascal to Ada: version 2 page tables, five levels. Which bits mean what is in the public manual
 * dev_mmu of these GPUs.
 */
#include <linux/kernel.h>

#include "mock_gpu.h"

#define PTE_VALID BIT_ULL(0)
#define PTE_SPARSE BIT_ULL(3)	/* "volatile", in an entry that is not valid */
#define APERTURE(entry) (((entry) >> 1) & 3)
#define PDE_VIDEO_MEMORY 1

/* A directory's entry: false if it points nowhere. */
static bool follow(u64 entry, bool *in_video_memory, unsigned int shift, u64 *base)
{
	u64 frame;

	if (!APERTURE(entry))
		return false;
	*in_video_memory = APERTURE(entry) == PDE_VIDEO_MEMORY;
	/* The field starts at the same bit in all of them; a table of 64 KiB pages is aligned to 256 bytes only. */
	frame = shift == 8 ? entry >> 4 : entry >> 8;
	frame &= *in_video_memory ? (shift == 8 ? 0x1fffffffULL : 0x1ffffffULL)
				  : (shift == 8 ? 0x3ffffffffffffULL : 0x3fffffffffffULL);
	*base = frame << shift;
	return true;
}

static bool is_sparse(u64 entry)
{
	return !(entry & PTE_VALID) && (entry & PTE_SPARSE);
}

static bool is_mapped(u64 entry)
{
	return (entry & PTE_VALID) || is_sparse(entry);
}

static u64 entry_at(bool in_video_memory, u64 address)
{
	u64 *entry = mock_physical(in_video_memory, address, sizeof(*entry));

	return entry ? READ_ONCE(*entry) : 0;
}

/* The entry that maps `va`, and the size of its page; page size 0 if nothing does. */
u64 mock_translate(const struct mock_vas *vas, u64 va, u64 *page_size)
{
	static const struct { unsigned int low, bits; } levels[] = { { 47, 2 }, { 38, 9 }, { 29, 9 } };
	bool video = vas->directory_in_video_memory, table_video;
	u64 base = vas->directory, entry, table, small;
	unsigned int i;

	*page_size = 0;
	if (!vas->has_directory)
		return 0;
	for (i = 0; i < ARRAY_SIZE(levels); i++) {
		u64 index = (va >> levels[i].low) & ((1ULL << levels[i].bits) - 1);

		if (!follow(entry_at(video, base + index * 8), &video, 12, &base))
			return 0;
	}
	base += ((va >> 21) & 0xff) * 16;
	entry = entry_at(video, base);
	if ((entry & PTE_VALID) || (!APERTURE(entry) && is_sparse(entry))) {
		*page_size = 2ULL << 20;
		return entry;
	}
	small = entry_at(video, base + 8);
	if (follow(entry, &table_video, 8, &table)) {
		entry = entry_at(table_video, table + ((va >> 16) & 31) * 8);
		if (is_mapped(entry)) {
			*page_size = 64ULL << 10;
			return entry;
		}
		if (entry)	/* "unmapped": hides what the table of 4 KiB pages says */
			return 0;
	}
	if (follow(small, &table_video, 12, &table)) {
		entry = entry_at(table_video, table + ((va >> 12) & 511) * 8);
		if (is_mapped(entry)) {
			*page_size = 4ULL << 10;
			return entry;
		}
	}
	return 0;
}

void *mock_page_pointer(u64 pte, u64 va, u64 page_size)
{
	bool video = APERTURE(pte) == 0;
	u64 page = ((pte >> 8) & (video ? 0x1ffffffULL : 0x3fffffffffffULL)) << 12;

	return mock_physical(video, page + (va & (page_size - 1)), 1);
}

/* Where the engine finds `va`, and how far that goes on. */
void *mock_pointer(const struct mock_vas *vas, u64 va, u64 *left)
{
	void *pointer = vas->internal ? mock_rm_pointer(va) : NULL;
	u64 pte, page_size;

	*left = 4096 - (va & 4095);
	if (pointer)
		return pointer;
	pte = mock_translate(vas, va, &page_size);
	return page_size && (pte & PTE_VALID) ? mock_page_pointer(pte, va, page_size) : NULL;
}
