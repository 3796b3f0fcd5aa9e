// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * What the model does not have: confidential computing, peers, enabled access counters, paging channels of SR-IOV, mappings of
 * channel resources. All answer NV_ERR_NOT_SUPPORTED. Their arguments differ between driver branches and are not
 * looked at, so the interface's header is not included here.
 */
#include <linux/module.h>

#include "nvstatus.h"

#define UNSUPPORTED(name)			\
	NV_STATUS name(void);			\
	NV_STATUS name(void)			\
	{					\
		return NV_ERR_NOT_SUPPORTED;	\
	}					\
	EXPORT_SYMBOL(name)

UNSUPPORTED(nvUvmInterfaceAccessBitsBufAlloc);
UNSUPPORTED(nvUvmInterfaceAccessBitsBufFree);
UNSUPPORTED(nvUvmInterfaceAccessBitsDump);
UNSUPPORTED(nvUvmInterfaceCslDecrypt);
UNSUPPORTED(nvUvmInterfaceCslEncrypt);
UNSUPPORTED(nvUvmInterfaceCslIncrementIv);
UNSUPPORTED(nvUvmInterfaceCslInitContext);
UNSUPPORTED(nvUvmInterfaceCslLogEncryption);
UNSUPPORTED(nvUvmInterfaceCslLogExternalEncryption);
UNSUPPORTED(nvUvmInterfaceCslQueryMessagePool);
UNSUPPORTED(nvUvmInterfaceCslRotateIv);
UNSUPPORTED(nvUvmInterfaceCslRotateKey);
UNSUPPORTED(nvUvmInterfaceCslSign);
UNSUPPORTED(nvUvmInterfaceCslUpdateContext);
UNSUPPORTED(nvUvmInterfaceDeinitCslContext);
UNSUPPORTED(nvUvmInterfaceDisableAccessCntr);
UNSUPPORTED(nvUvmInterfaceDupAllocation);
UNSUPPORTED(nvUvmInterfaceEnableAccessCntr);
UNSUPPORTED(nvUvmInterfaceFlushReplayableFaultBuffer);
UNSUPPORTED(nvUvmInterfaceGetChannelResourcePtes);
UNSUPPORTED(nvUvmInterfaceGetExternalAllocPhysAddrs);
UNSUPPORTED(nvUvmInterfaceGetP2PCaps);
UNSUPPORTED(nvUvmInterfaceP2pObjectCreate);
UNSUPPORTED(nvUvmInterfaceP2pObjectDestroy);
UNSUPPORTED(nvUvmInterfacePagingChannelAllocate);
UNSUPPORTED(nvUvmInterfacePagingChannelDestroy);
UNSUPPORTED(nvUvmInterfacePagingChannelPushStream);
UNSUPPORTED(nvUvmInterfacePagingChannelsMap);
UNSUPPORTED(nvUvmInterfacePagingChannelsUnmap);
UNSUPPORTED(nvUvmInterfacePmaUnpinPages);
UNSUPPORTED(nvUvmInterfaceTogglePrefetchFaults);
