// SPDX-License-Identifier: MIT OR GPL-2.0
// A new block of HMM, with its lock held; what there is already was found before.

@@
identifier VS, L;
expression S, BLOCK;
expression list REST;
@@
  uvm_mutex_lock(&VS->hmm.blocks_lock);
  ... when any
+ S = uvm_fault_isolation_admit(VS);
+ if (S != NV_OK)
+     goto L;
  S = uvm_va_block_create(REST, BLOCK);
  if (S != NV_OK)
      goto L;
