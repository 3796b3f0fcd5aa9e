// SPDX-License-Identifier: MIT OR GPL-2.0
/* Video memory, and what RM allocates for UVM in UVM's own address space. */
#include <linux/bitmap.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "nv_uvm_interface.h"
#include "mock_gpu.h"

struct rm_allocation {
	struct list_head node;
	u64 va;
	u64 size;
	void *cpu;
};

static u8 *video_memory;
static DECLARE_BITMAP(chunks, MOCK_CHUNKS);
static LIST_HEAD(rm_allocations);
static u64 next_va = 0x100000000ULL;
static UvmPmaStatistics pma_statistics;

int mock_memory_init(void)
{
	video_memory = vzalloc(MOCK_VIDEO_MEMORY);
	pma_statistics.numPages2m = MOCK_CHUNKS;
	pma_statistics.numFreePages2m = MOCK_CHUNKS;
	pma_statistics.numFreePages64k = MOCK_CHUNKS * 32;
	return video_memory ? 0 : -ENOMEM;
}

void mock_memory_exit(void)
{
	vfree(video_memory);
}

/* The machine's own memory is physical address for physical address the GPU's system memory. */
void *mock_physical(bool in_video_memory, u64 address, u64 length)
{
	if (in_video_memory)
		return address + length <= MOCK_VIDEO_MEMORY ? video_memory + address : NULL;
	return pfn_valid(address >> PAGE_SHIFT) ? phys_to_virt(address) : NULL;
}

void *mock_rm_pointer(u64 va)
{
	struct rm_allocation *each;

	list_for_each_entry(each, &rm_allocations, node)
		if (va >= each->va && va < each->va + each->size)
			return each->cpu + (va - each->va);
	return NULL;
}

long mock_take_chunk(void)
{
	unsigned long chunk = find_first_zero_bit(chunks, MOCK_CHUNKS);

	lockdep_assert_held(&mock_lock);
	if (chunk >= MOCK_CHUNKS)
		return -ENOMEM;
	__set_bit(chunk, chunks);
	mock_counts.chunks_used++;
	pma_statistics.numFreePages2m--;
	pma_statistics.numFreePages64k -= 32;
	return chunk * MOCK_CHUNK;
}

void mock_give_chunk(u64 physical)
{
	lockdep_assert_held(&mock_lock);
	if (!__test_and_clear_bit(physical / MOCK_CHUNK, chunks)) {
		WARN(1, "mock GPU: chunk at 0x%llx is given back twice\n", physical);
		return;
	}
	mock_counts.chunks_used--;
	pma_statistics.numFreePages2m++;
	pma_statistics.numFreePages64k += 32;
}

static NV_STATUS rm_allocate(NvLength length, UvmGpuPointer *pointer, const UvmGpuAllocInfo *info)
{
	struct rm_allocation *new = kzalloc(sizeof(*new), GFP_KERNEL);
	void *cpu = vzalloc(length);

	if (!new || !cpu) {
		kfree(new);
		vfree(cpu);
		return NV_ERR_NO_MEMORY;
	}
	mutex_lock(&mock_lock);
	next_va = ALIGN(next_va, max_t(u64, info->alignment, MOCK_CHUNK));
	new->va = next_va;
	new->size = length;
	new->cpu = cpu;
	next_va += length;
	list_add(&new->node, &rm_allocations);
	mock_counts.rm_allocations++;
	*pointer = new->va;
	mutex_unlock(&mock_lock);
	return NV_OK;
}

NV_STATUS nvUvmInterfaceMemoryAllocFB(uvmGpuAddressSpaceHandle vas, NvLength length, UvmGpuPointer *pointer,
				      UvmGpuAllocInfo *info)
{
	return rm_allocate(length, pointer, info);
}
MOCK_EXPORT(nvUvmInterfaceMemoryAllocFB);

NV_STATUS nvUvmInterfaceMemoryAllocSys(uvmGpuAddressSpaceHandle vas, NvLength length, UvmGpuPointer *pointer,
				       UvmGpuAllocInfo *info)
{
	return rm_allocate(length, pointer, info);
}
MOCK_EXPORT(nvUvmInterfaceMemoryAllocSys);

void nvUvmInterfaceMemoryFree(uvmGpuAddressSpaceHandle vas, UvmGpuPointer pointer)
{
	struct rm_allocation *each, *found = NULL;

	mutex_lock(&mock_lock);
	list_for_each_entry(each, &rm_allocations, node)
		if (each->va == pointer)
			found = each;
	if (found) {
		list_del(&found->node);
		mock_counts.rm_allocations--;
	}
	mutex_unlock(&mock_lock);
	if (found) {
		vfree(found->cpu);
		kfree(found);
	}
}
MOCK_EXPORT(nvUvmInterfaceMemoryFree);

NV_STATUS nvUvmInterfaceMemoryCpuMap(uvmGpuAddressSpaceHandle vas, UvmGpuPointer pointer, NvLength length, void **cpu,
				     NvU64 page_size)
{
	mutex_lock(&mock_lock);
	*cpu = mock_rm_pointer(pointer);
	mutex_unlock(&mock_lock);
	return *cpu ? NV_OK : NV_ERR_INVALID_ADDRESS;
}
MOCK_EXPORT(nvUvmInterfaceMemoryCpuMap);

void nvUvmInterfaceMemoryCpuUnMap(uvmGpuAddressSpaceHandle vas, void *cpu)
{
}
MOCK_EXPORT(nvUvmInterfaceMemoryCpuUnMap);

NV_STATUS nvUvmInterfaceGetPmaObject(uvmGpuDeviceHandle device, void **pma, const UvmPmaStatistics **statistics)
{
	*pma = video_memory;
	*statistics = &pma_statistics;
	return NV_OK;
}
MOCK_EXPORT(nvUvmInterfaceGetPmaObject);

NV_STATUS nvUvmInterfacePmaRegisterEvictionCallbacks(void *pma, uvmPmaEvictPagesCallback evict_pages,
						     uvmPmaEvictRangeCallback evict_range, void *data)
{
	return NV_OK;
}
MOCK_EXPORT(nvUvmInterfacePmaRegisterEvictionCallbacks);

void nvUvmInterfacePmaUnregisterEvictionCallbacks(void *pma)
{
}
MOCK_EXPORT(nvUvmInterfacePmaUnregisterEvictionCallbacks);

NV_STATUS nvUvmInterfacePmaAllocPages(void *pma, NvLength count, NvU64 page_size, UvmPmaAllocationOptions *options,
				      NvU64 *pages)
{
	NvLength taken;

	if (page_size != MOCK_CHUNK)
		return NV_ERR_INVALID_ARGUMENT;
	mutex_lock(&mock_lock);
	for (taken = 0; taken < count; taken++) {
		long chunk = mock_take_chunk();

		if (chunk < 0)
			break;
		pages[taken] = chunk;
	}
	if (taken < count && !(options->flags & UVM_PMA_ALLOCATE_ALLOW_PARTIAL))
		while (taken)
			mock_give_chunk(pages[--taken]);
	mutex_unlock(&mock_lock);
	options->numPagesAllocated = taken;
	options->resultFlags = 0;
	return taken ? NV_OK : NV_ERR_NO_MEMORY;
}
MOCK_EXPORT(nvUvmInterfacePmaAllocPages);

NV_STATUS nvUvmInterfacePmaPinPages(void *pma, NvU64 *pages, NvLength count, NvU64 page_size, NvU32 flags)
{
	return NV_OK;
}
MOCK_EXPORT(nvUvmInterfacePmaPinPages);

void nvUvmInterfacePmaFreePages(void *pma, NvU64 *pages, NvLength count, NvU64 page_size, NvU32 flags)
{
	NvLength i;

	mutex_lock(&mock_lock);
	for (i = 0; i < count; i++)
		mock_give_chunk(pages[i]);
	mutex_unlock(&mock_lock);
}
MOCK_EXPORT(nvUvmInterfacePmaFreePages);
