// SPDX-License-Identifier: MIT OR GPL-2.0
// Where HMM's blocks make room for a new range, one is about to be made: the VA space is locked for write.

@@
expression VS, S;
expression list REST;
@@
+ S = uvm_fault_isolation_admit(VS);
+ if (S != NV_OK)
+     return S;
  S = uvm_hmm_va_block_reclaim(VS, REST);
