// SPDX-License-Identifier: MIT OR GPL-2.0
// A new block of HMM, with its lock held; what there is already was found before. Of a poisoned VA space it gets what
// the sinks leave, so that memory which the GPU touches for the first time is served as ever.

@@
identifier VS, L;
expression S, ADDRESS, START, END, BLOCK;
expression list REST;
@@
  uvm_mutex_lock(&VS->hmm.blocks_lock);
  ...
  S = uvm_range_tree_find_hole_in(&VS->hmm.blocks, ADDRESS, &START, &END);
  ...
+ if (uvm_fault_isolation_admit(VS) != NV_OK) {
+     S = uvm_fault_isolation_clip_block(VS, ADDRESS, &START, &END);
+     if (S != NV_OK)
+         goto L;
+ }
  S = uvm_va_block_create(REST, BLOCK);
  if (S != NV_OK)
      goto L;
