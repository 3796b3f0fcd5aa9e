// SPDX-License-Identifier: MIT OR GPL-2.0
// A new block of HMM, with its lock held; what there is already was found before. To a poisoned VA space the address is
// none that HMM could serve: any other status would be taken for an error of UVM's own, and end a copy engine's channel.

@@
identifier VS, L;
expression S, BLOCK;
expression list REST;
@@
  uvm_mutex_lock(&VS->hmm.blocks_lock);
  ... when any
+ if (uvm_fault_isolation_admit(VS) != NV_OK) {
+     S = NV_ERR_INVALID_ADDRESS;
+     goto L;
+ }
  S = uvm_va_block_create(REST, BLOCK);
  if (S != NV_OK)
      goto L;
