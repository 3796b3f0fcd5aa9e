// SPDX-License-Identifier: MIT OR GPL-2.0
/* What RM tells UVM of the GPU, address spaces, and the channels of UVM itself. */
#include <linux/irq_work.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "nv_uvm_interface.h"
#include "mock_gpu.h"

/* Turing (public class numbers): the oldest GPU with VEIDs, precise cancels and CLEAR_FAULTED as a host method. */
#define ARCHITECTURE_TURING 0x160
#define IMPLEMENTATION_TU102 2
#define HOST_CLASS 0xc46f
#define COPY_CLASS 0xc5b5
#define COMPUTE_CLASS 0xc5c0

const u8 mock_uuid[16] = MOCK_GPU_UUID;
struct mock_statistics mock_counts;
static u32 doorbell, time_registers[2];

#ifdef MOCK_HAS_LINUX_EVENTS
static struct UvmEventsLinux *events;
#else
static struct UvmOpsUvmEvents *events;
#endif

/* Runs as an interrupt, for UVM looks whether it is in one. */
static bool interrupt_taken;

static void interrupt(struct irq_work *work)
{
	NvProcessorUuid uuid;

	memcpy(uuid.uuid, mock_uuid, sizeof(mock_uuid));
	interrupt_taken = READ_ONCE(events) && events->isrTopHalf && events->isrTopHalf(&uuid) == NV_OK;
}

static struct irq_work interrupt_work = IRQ_WORK_INIT_HARD(interrupt);

/* From the engine's thread; true if UVM has something to do. */
bool mock_raise_interrupt(void)
{
	irq_work_queue(&interrupt_work);
	irq_work_sync(&interrupt_work);
	return READ_ONCE(interrupt_taken);
}

#ifdef MOCK_HAS_LINUX_EVENTS
NV_STATUS nvUvmInterfaceRegisterUvmEvents(struct UvmEventsLinux *new)
#else
NV_STATUS nvUvmInterfaceRegisterUvmCallbacks(struct UvmOpsUvmEvents *new)
#endif
{
	WRITE_ONCE(events, new);
	return NV_OK;
}
#ifdef MOCK_HAS_LINUX_EVENTS
MOCK_EXPORT(nvUvmInterfaceRegisterUvmEvents);
void nvUvmInterfaceDeRegisterUvmEvents(void)
#else
MOCK_EXPORT(nvUvmInterfaceRegisterUvmCallbacks);
void nvUvmInterfaceDeRegisterUvmOps(void)
#endif
{
	WRITE_ONCE(events, NULL);
	irq_work_sync(&interrupt_work);	/* it is not called any more */
}
#ifdef MOCK_HAS_LINUX_EVENTS
MOCK_EXPORT(nvUvmInterfaceDeRegisterUvmEvents);
#else
MOCK_EXPORT(nvUvmInterfaceDeRegisterUvmOps);
#endif

NV_STATUS nvUvmInterfaceRegisterGpu(const NvProcessorUuid *uuid, UvmGpuPlatformInfo *info)
{
	if (memcmp(uuid->uuid, mock_uuid, sizeof(mock_uuid)))
		return NV_ERR_GPU_UUID_NOT_FOUND;
	info->pci_dev = mock_pci_device;
	info->dma_addressable_start = 0;
	info->dma_addressable_limit = (1ULL << 40) - 1;
	return NV_OK;
}
MOCK_EXPORT(nvUvmInterfaceRegisterGpu);

void nvUvmInterfaceUnregisterGpu(const NvProcessorUuid *uuid)
{
}
MOCK_EXPORT(nvUvmInterfaceUnregisterGpu);

NV_STATUS nvUvmInterfaceSessionCreate(uvmGpuSessionHandle *session, UvmPlatformInfo *info)
{
	memset(info, 0, sizeof(*info));
	*session = (void *)&mock_counts;
	return NV_OK;
}
MOCK_EXPORT(nvUvmInterfaceSessionCreate);

NV_STATUS nvUvmInterfaceSessionDestroy(uvmGpuSessionHandle session)
{
	return NV_OK;
}
MOCK_EXPORT(nvUvmInterfaceSessionDestroy);

NV_STATUS nvUvmInterfaceDeviceCreate(uvmGpuSessionHandle session, const UvmGpuInfo *info, const NvProcessorUuid *uuid,
				     uvmGpuDeviceHandle *device, NvBool create_smc_partition)
{
	*device = (void *)&mock_counts;
	return NV_OK;
}
MOCK_EXPORT(nvUvmInterfaceDeviceCreate);

void nvUvmInterfaceDeviceDestroy(uvmGpuDeviceHandle device)
{
}
MOCK_EXPORT(nvUvmInterfaceDeviceDestroy);

NV_STATUS nvUvmInterfaceGetGpuInfo(const NvProcessorUuid *uuid, const UvmGpuClientInfo *client, UvmGpuInfo *info)
{
	memset(info, 0, sizeof(*info));
	strscpy(info->name, "Mock GPU (simulated)", sizeof(info->name));
	memcpy(info->uuid.uuid, mock_uuid, sizeof(mock_uuid));
	info->gpuArch = ARCHITECTURE_TURING;
	info->gpuImplementation = IMPLEMENTATION_TU102;
	info->hostClass = HOST_CLASS;
	info->ceClass = COPY_CLASS;
	info->computeClass = COMPUTE_CLASS;
	info->subdeviceCount = 1;
	info->gpcCount = 1;
	info->maxGpcCount = 1;
	info->tpcCount = 1;
	info->maxTpcPerGpcCount = 1;
	info->sysmemLink = UVM_LINK_TYPE_PCIE;
	info->sysmemLinkRateMBps = 16000;
#if defined(MOCK_HAS_COUNTER_BUFFERS) && defined(MOCK_HAS_COUNTERS)
	info->accessCntrBufferCount = 1;
#endif
	return NV_OK;
}
MOCK_EXPORT(nvUvmInterfaceGetGpuInfo);

NV_STATUS nvUvmInterfaceGetFbInfo(uvmGpuDeviceHandle device, UvmGpuFbInfo *info)
{
	memset(info, 0, sizeof(*info));
	info->maxAllocatableAddress = MOCK_VIDEO_MEMORY - 1;
	info->heapSize = MOCK_VIDEO_MEMORY >> 10;
#ifdef MOCK_HAS_VIDEO_PAGE_SIZE
	info->maxVidmemPageSize = MOCK_CHUNK;
#endif
	return NV_OK;
}
MOCK_EXPORT(nvUvmInterfaceGetFbInfo);

NV_STATUS nvUvmInterfaceGetEccInfo(uvmGpuDeviceHandle device, UvmGpuEccInfo *info)
{
	memset(info, 0, sizeof(*info));
	return NV_OK;
}
MOCK_EXPORT(nvUvmInterfaceGetEccInfo);

#ifdef MOCK_HAS_NVLINK_INFO
NV_STATUS nvUvmInterfaceGetNvlinkInfo(uvmGpuDeviceHandle device, UvmGpuNvlinkInfo *info)
{
	memset(info, 0, sizeof(*info));
	return NV_OK;
}
MOCK_EXPORT(nvUvmInterfaceGetNvlinkInfo);
#endif

NV_STATUS nvUvmInterfaceQueryCaps(uvmGpuDeviceHandle device, UvmGpuCaps *caps)
{
	memset(caps, 0, sizeof(*caps));
	return NV_OK;
}
MOCK_EXPORT(nvUvmInterfaceQueryCaps);

NV_STATUS nvUvmInterfaceQueryCopyEnginesCaps(uvmGpuDeviceHandle device, UvmGpuCopyEnginesCaps *caps)
{
	unsigned int i;

	memset(caps, 0, sizeof(*caps));
	for (i = 0; i < 2; i++) {
		UvmGpuCopyEngineCaps *engine = &caps->copyEngineCaps[i];

		engine->supported = 1;
		engine->sysmem = 1;
		engine->sysmemRead = 1;
		engine->sysmemWrite = 1;
		engine->p2p = 1;
		engine->cePceMask = 1 << i;
	}
	return NV_OK;
}
MOCK_EXPORT(nvUvmInterfaceQueryCopyEnginesCaps);

NV_STATUS nvUvmInterfaceServiceDeviceInterruptsRM(uvmGpuDeviceHandle device)
{
	return NV_OK;
}
MOCK_EXPORT(nvUvmInterfaceServiceDeviceInterruptsRM);

static struct mock_vas *new_address_space(bool internal, UvmGpuAddressSpaceInfo *info)
{
	struct mock_vas *vas = kzalloc(sizeof(*vas), GFP_KERNEL);

	memset(info, 0, sizeof(*info));
	info->bigPageSize = 64 << 10;
	info->time0Offset = &time_registers[0];
	info->time1Offset = &time_registers[1];
	info->maxSubctxCount = MOCK_GPU_SUBCONTEXTS;
	if (vas) {
		vas->internal = internal;
		mutex_lock(&mock_lock);
		mock_counts.address_spaces++;
		mutex_unlock(&mock_lock);
	}
	return vas;
}

NV_STATUS nvUvmInterfaceAddressSpaceCreate(uvmGpuDeviceHandle device, unsigned long long base, unsigned long long size,
#ifdef MOCK_HAS_ENABLE_ATS
					   NvBool enable_ats,
#endif
					   uvmGpuAddressSpaceHandle *handle, UvmGpuAddressSpaceInfo *info)
{
	*handle = (void *)new_address_space(true, info);
	return *handle ? NV_OK : NV_ERR_NO_MEMORY;
}
MOCK_EXPORT(nvUvmInterfaceAddressSpaceCreate);

NV_STATUS nvUvmInterfaceDupAddressSpace(uvmGpuDeviceHandle device, NvHandle client, NvHandle vas,
					uvmGpuAddressSpaceHandle *handle, UvmGpuAddressSpaceInfo *info)
{
	*handle = (void *)new_address_space(false, info);
	return *handle ? NV_OK : NV_ERR_NO_MEMORY;
}
MOCK_EXPORT(nvUvmInterfaceDupAddressSpace);

void nvUvmInterfaceAddressSpaceDestroy(uvmGpuAddressSpaceHandle handle)
{
	mutex_lock(&mock_lock);
	mock_counts.address_spaces--;
	mutex_unlock(&mock_lock);
	kfree(handle);
}
MOCK_EXPORT(nvUvmInterfaceAddressSpaceDestroy);

NV_STATUS nvUvmInterfaceSetPageDirectory(uvmGpuAddressSpaceHandle handle, NvU64 address, unsigned int entries,
#ifdef MOCK_HAS_DMA_ADDRESS
					 NvBool in_video_memory, NvU32 pasid, NvU64 *dma_address)
#else
					 NvBool in_video_memory, NvU32 pasid)
#endif
{
	struct mock_vas *vas = (void *)handle;

	mutex_lock(&mock_lock);
	vas->directory = address;
	vas->directory_in_video_memory = in_video_memory;
	vas->has_directory = true;
	mutex_unlock(&mock_lock);
#ifdef MOCK_HAS_DMA_ADDRESS
	if (dma_address)
		*dma_address = address;
#endif
	return NV_OK;
}
MOCK_EXPORT(nvUvmInterfaceSetPageDirectory);

NV_STATUS nvUvmInterfaceUnsetPageDirectory(uvmGpuAddressSpaceHandle handle)
{
	struct mock_vas *vas = (void *)handle;

	mutex_lock(&mock_lock);
	vas->has_directory = false;
	mutex_unlock(&mock_lock);
	return NV_OK;
}
MOCK_EXPORT(nvUvmInterfaceUnsetPageDirectory);

NV_STATUS nvUvmInterfaceTsgAllocate(uvmGpuAddressSpaceHandle vas, const UvmGpuTsgAllocParams *parameters,
				    uvmGpuTsgHandle *handle)
{
	*handle = (void *)vas;
	return NV_OK;
}
MOCK_EXPORT(nvUvmInterfaceTsgAllocate);

void nvUvmInterfaceTsgDestroy(uvmGpuTsgHandle handle)
{
}
MOCK_EXPORT(nvUvmInterfaceTsgDestroy);

NV_STATUS nvUvmInterfaceChannelAllocate(const uvmGpuTsgHandle tsg, const UvmGpuChannelAllocParams *parameters,
					uvmGpuChannelHandle *handle, UvmGpuChannelInfo *info)
{
	struct mock_internal_channel *channel = kzalloc(sizeof(*channel), GFP_KERNEL);
	static u32 next_id;

	if (channel) {
		channel->fifo = vzalloc(parameters->numGpFifoEntries * sizeof(*channel->fifo));
		channel->registers = (u32 *)get_zeroed_page(GFP_KERNEL);
	}
	if (!channel || !channel->fifo || !channel->registers) {
		if (channel) {
			vfree(channel->fifo);
			free_page((unsigned long)channel->registers);
		}
		kfree(channel);
		return NV_ERR_NO_MEMORY;
	}
	channel->vas = (void *)tsg;
	channel->entries = parameters->numGpFifoEntries;
	channel->notifier = (void *)((u8 *)channel->registers + PAGE_SIZE / 2);
	memset(info, 0, sizeof(*info));
	mutex_lock(&mock_lock);
	info->hwChannelId = next_id++;
	list_add_tail(&channel->node, &mock_internal_channels);
	mutex_unlock(&mock_lock);
	info->gpGet = &channel->registers[0];
	info->gpPut = &channel->registers[1];
	info->gpFifoEntries = channel->fifo;
	info->numGpFifoEntries = channel->entries;
	info->channelClassNum = HOST_CLASS;
	info->errorNotifier = channel->notifier;
	info->hwRunlistId = 1;
	info->workSubmissionOffset = &doorbell;
	info->workSubmissionToken = info->hwChannelId;
	info->pWorkSubmissionToken = &channel->registers[2];
	channel->registers[2] = info->hwChannelId;
	*handle = (void *)channel;
	return NV_OK;
}
MOCK_EXPORT(nvUvmInterfaceChannelAllocate);

void nvUvmInterfaceChannelDestroy(uvmGpuChannelHandle handle)
{
	struct mock_internal_channel *channel = (void *)handle;

	mutex_lock(&mock_lock);
	list_del(&channel->node);
	mutex_unlock(&mock_lock);
	vfree(channel->fifo);
	free_page((unsigned long)channel->registers);
	kfree(channel);
}
MOCK_EXPORT(nvUvmInterfaceChannelDestroy);

void nvUvmInterfaceReportFatalError(NV_STATUS error)
{
	mock_counts.fatal_errors++;
	pr_err("mock GPU: nvidia-uvm reports fatal error 0x%x\n", error);
}
MOCK_EXPORT(nvUvmInterfaceReportFatalError);
