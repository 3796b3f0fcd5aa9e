// SPDX-License-Identifier: MIT OR GPL-2.0
/* The channels and memory of clients, made through /dev/mock-gpu and looked up by nvidia-uvm under their RM handles. */
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "nv_uvm_interface.h"
#include "mock_gpu.h"

#define PTE_VALID 1ULL
#define PTE_ADDRESS_SHIFT 8
#define PTE_READ_ONLY BIT_ULL(6)
#define PTE_NO_ATOMICS BIT_ULL(7)
#define FIRST_INSTANCE 0x80000000ULL

LIST_HEAD(mock_allocations);
static u32 next_id = 1;

static void put_channel(struct mock_user_channel *channel)
{
	if (channel->owner || channel->vas)
		return;
	mock_drop_accesses(channel);
	list_del(&channel->node);
	mock_counts.channels--;
	kfree(channel);
}

static void put_allocation(struct mock_allocation *allocation)
{
	if (allocation->owner || allocation->held)
		return;
	mock_give_chunk(allocation->is.physical);
	list_del(&allocation->node);
	kfree(allocation);
}

void mock_forget_owner(struct file *owner)
{
	struct mock_user_channel *channel, *next_channel;
	struct mock_allocation *allocation, *next_allocation;

	mutex_lock(&mock_lock);
	list_for_each_entry_safe(channel, next_channel, &mock_user_channels, node)
		if (channel->owner == owner) {
			channel->owner = NULL;
			put_channel(channel);
		}
	list_for_each_entry_safe(allocation, next_allocation, &mock_allocations, node)
		if (allocation->owner == owner) {
			allocation->owner = NULL;
			put_allocation(allocation);
		}
	mutex_unlock(&mock_lock);
}

long mock_create_channel(struct file *file, const struct mock_channel *wanted)
{
	struct mock_user_channel *new;

	if (wanted->tsg >= MOCK_GPU_TSGS || wanted->veid >= MOCK_GPU_SUBCONTEXTS)
		return -EINVAL;
	new = kzalloc(sizeof(*new), GFP_KERNEL);
	if (!new)
		return -ENOMEM;
	new->is = *wanted;
	new->owner = file;
	mutex_lock(&mock_lock);
	new->id = next_id++;
	new->instance = FIRST_INSTANCE + new->id * 0x1000ULL;
	mock_counts.channels++;
	list_add(&new->node, &mock_user_channels);
	mutex_unlock(&mock_lock);
	return 0;
}

long mock_create_memory(struct file *file, struct mock_memory *wanted)
{
	struct mock_allocation *new;
	long chunk;

	if (!wanted->size || wanted->size > MOCK_CHUNK)
		return -EINVAL;
	if (wanted->page_size != 4 << 10 && wanted->page_size != 64 << 10 && wanted->page_size != 2 << 20)
		return -EINVAL;
	new = kzalloc(sizeof(*new), GFP_KERNEL);
	if (!new)
		return -ENOMEM;
	mutex_lock(&mock_lock);
	chunk = mock_take_chunk();
	if (chunk >= 0) {
		wanted->physical = chunk;
		memset(mock_physical(true, chunk, MOCK_CHUNK), 0, MOCK_CHUNK);
		new->is = *wanted;
		new->owner = file;
		new->id = next_id++;
		list_add(&new->node, &mock_allocations);
	}
	mutex_unlock(&mock_lock);
	if (chunk < 0)
		kfree(new);
	return chunk < 0 ? chunk : 0;
}

NV_STATUS nvUvmInterfaceRetainChannel(uvmGpuAddressSpaceHandle vas, NvHandle client, NvHandle handle, void **retained,
				      UvmGpuChannelInstanceInfo *info)
{
	struct mock_user_channel *each, *found = NULL;

	mutex_lock(&mock_lock);
	list_for_each_entry(each, &mock_user_channels, node)
		if (each->is.hclient == client && each->is.hchannel == handle && !each->vas)
			found = each;
	if (found) {
		memset(info, 0, sizeof(*info));
		found->vas = (void *)vas;
		info->base = found->instance;
		info->chId = found->id;
		info->bInSubctx = NV_TRUE;
		info->subctxId = found->is.veid;
		info->bTsgChannel = NV_TRUE;
		info->tsgId = found->is.tsg;
		info->tsgMaxSubctxCount = MOCK_GPU_SUBCONTEXTS;
		info->channelEngineType = UVM_GPU_CHANNEL_ENGINE_TYPE_GR;
		info->clearFaultedToken = found->id;
		*retained = found;
	}
	mutex_unlock(&mock_lock);
	return found ? NV_OK : NV_ERR_OBJECT_NOT_FOUND;
}
MOCK_EXPORT(nvUvmInterfaceRetainChannel);

NV_STATUS nvUvmInterfaceBindChannelResources(void *retained, UvmGpuChannelResourceBindParams *parameters)
{
	return NV_OK;
}
MOCK_EXPORT(nvUvmInterfaceBindChannelResources);

/* What is in flight is preempted: the harmless one of the two ways in which RM can stop a channel. */
void nvUvmInterfaceStopChannel(void *retained, NvBool immediate)
{
	struct mock_user_channel *channel = retained;

	mutex_lock(&mock_lock);
	channel->stopped = true;
	mock_drop_accesses(channel);
	mutex_unlock(&mock_lock);
}
MOCK_EXPORT(nvUvmInterfaceStopChannel);

void nvUvmInterfaceReleaseChannel(void *retained)
{
	struct mock_user_channel *channel = retained;

	mutex_lock(&mock_lock);
	mock_drop_accesses(channel);
	channel->vas = NULL;
	put_channel(channel);
	mutex_unlock(&mock_lock);
}
MOCK_EXPORT(nvUvmInterfaceReleaseChannel);

static struct mock_allocation *find_allocation(u32 id)
{
	struct mock_allocation *each;

	list_for_each_entry(each, &mock_allocations, node)
		if (each->id == id)
			return each;
	return NULL;
}

NV_STATUS nvUvmInterfaceDupMemory(uvmGpuDeviceHandle gpu, NvHandle client, NvHandle handle, NvHandle *duplicate,
				  UvmGpuMemoryInfo *info)
{
	struct mock_allocation *each, *found = NULL;

	if (!mock_wait_while_stalled())
		return NV_ERR_SIGNAL_PENDING;
	mutex_lock(&mock_lock);
	list_for_each_entry(each, &mock_allocations, node)
		if (each->is.hclient == client && each->is.hmemory == handle && each->owner)
			found = each;
	if (found) {
		memset(info, 0, sizeof(*info));
		info->deviceDescendant = NV_TRUE;
		info->pageSize = found->is.page_size;
		info->contig = NV_TRUE;
		info->physAddr = found->is.physical;
		info->size = found->is.size;
		memcpy(info->uuid.uuid, mock_uuid, sizeof(mock_uuid));
		found->held++;
		*duplicate = found->id;
	}
	mutex_unlock(&mock_lock);
	return found ? NV_OK : NV_ERR_OBJECT_NOT_FOUND;
}
MOCK_EXPORT(nvUvmInterfaceDupMemory);

NV_STATUS nvUvmInterfaceFreeDupedHandle(uvmGpuDeviceHandle gpu, NvHandle handle)
{
	struct mock_allocation *allocation;

	mutex_lock(&mock_lock);
	allocation = find_allocation(handle);
	if (allocation) {
		allocation->held--;
		put_allocation(allocation);
	}
	mutex_unlock(&mock_lock);
	return allocation ? NV_OK : NV_ERR_OBJECT_NOT_FOUND;
}
MOCK_EXPORT(nvUvmInterfaceFreeDupedHandle);

NV_STATUS nvUvmInterfaceGetExternalAllocPtes(uvmGpuAddressSpaceHandle vas, NvHandle handle, NvU64 offset, NvU64 size,
					     UvmGpuExternalMappingInfo *info)
{
	struct mock_allocation *allocation;
	u64 room = info->pteBufferSize / sizeof(u64), page, wanted, flags = PTE_VALID, i;

	mutex_lock(&mock_lock);
	allocation = find_allocation(handle);
	if (!allocation) {
		mutex_unlock(&mock_lock);
		return NV_ERR_OBJECT_NOT_FOUND;
	}
	page = info->mappingPageSize ?: allocation->is.page_size;
	wanted = (size ?: allocation->is.size - offset) / page;
	if (allocation->is.read_only || info->mappingType == 3 /* read only */)
		flags |= PTE_READ_ONLY | PTE_NO_ATOMICS;
	else if (info->mappingType == 2 /* read and write, no atomics */)
		flags |= PTE_NO_ATOMICS;
	info->pteSize = sizeof(u64);
	info->numWrittenPtes = min(wanted, room);
	info->numRemainingPtes = wanted - info->numWrittenPtes;
	for (i = 0; i < info->numWrittenPtes; i++)
		info->pteBuffer[i] = flags | (allocation->is.physical + offset + i * page) >> 12 << PTE_ADDRESS_SHIFT;
#ifdef MOCK_HAS_L2_INVALIDATE
	info->bNeedL2InvalidateAtUnmap = NV_FALSE;
#endif
	mutex_unlock(&mock_lock);
	return NV_OK;
}
MOCK_EXPORT(nvUvmInterfaceGetExternalAllocPtes);
