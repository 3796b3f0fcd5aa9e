// SPDX-License-Identifier: MIT OR GPL-2.0
/* Access counters: a Turing has them, so UVM wants a buffer; nothing is ever counted. */
#include <linux/module.h>
#include <linux/string.h>

#include "nv_uvm_interface.h"
#include "mock_gpu.h"

#define NOTIFICATION_BYTES 32
#define NOTIFICATIONS 256

enum { GET, PUT, FULL, INTERRUPT, ENABLE_SET, ENABLE_CLEAR, REGISTERS };

static u32 registers[REGISTERS];
static u8 buffer[NOTIFICATIONS * NOTIFICATION_BYTES];

NV_STATUS nvUvmInterfaceInitAccessCntrInfo(uvmGpuDeviceHandle device, UvmGpuAccessCntrInfo *info, NvU32 index)
{
	memset(info, 0, sizeof(*info));
	memset(registers, 0, sizeof(registers));
	info->pAccessCntrBufferGet = &registers[GET];
	info->pAccessCntrBufferPut = &registers[PUT];
	info->pAccessCntrBufferFull = &registers[FULL];
	info->pHubIntr = &registers[INTERRUPT];
	info->pHubIntrEnSet = &registers[ENABLE_SET];
	info->pHubIntrEnClear = &registers[ENABLE_CLEAR];
	info->accessCounterMask = 1;
	info->bufferAddress = buffer;
	info->bufferSize = sizeof(buffer);
	info->accessCntrBufferHandle = 2;
	return NV_OK;
}
MOCK_EXPORT(nvUvmInterfaceInitAccessCntrInfo);

NV_STATUS nvUvmInterfaceDestroyAccessCntrInfo(uvmGpuDeviceHandle device, UvmGpuAccessCntrInfo *info)
{
	return NV_OK;
}
MOCK_EXPORT(nvUvmInterfaceDestroyAccessCntrInfo);
