// SPDX-License-Identifier: MIT OR GPL-2.0
/* The channels of clients by their time slice group, and the lock of all that the mock GPU has. */
#include <linux/module.h>

#include "nv_uvm_interface.h"
#include "mock_gpu.h"

DEFINE_MUTEX(mock_lock);
LIST_HEAD(mock_user_channels);

struct mock_user_channel *mock_find_channel(u32 tsg, u32 veid)
{
	struct mock_user_channel *each;

	list_for_each_entry(each, &mock_user_channels, node)
		if (each->is.tsg == tsg && each->is.veid == veid && each->vas)
			return each;
	return NULL;
}

struct mock_user_channel *mock_any_channel(u32 tsg)
{
	struct mock_user_channel *each;

	list_for_each_entry(each, &mock_user_channels, node)
		if (each->is.tsg == tsg && each->vas)
			return each;
	return NULL;
}
