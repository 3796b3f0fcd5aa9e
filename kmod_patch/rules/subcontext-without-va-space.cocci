// SPDX-License-Identifier: MIT OR GPL-2.0
// A fault in a subcontext that has no VA space. Access counters have no offset to subtract, and are left alone.

@exists@
expression CHANNEL, S;
identifier VEID;
@@
  VEID -= CHANNEL->smc_engine_ve_id_offset;
  ... when any
- S = NV_ERR_PAGE_TABLE_NOT_AVAIL;
+ S = uvm_fault_isolation_orphan_status(CHANNEL, VEID);
