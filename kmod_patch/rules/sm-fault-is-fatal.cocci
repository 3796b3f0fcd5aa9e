// SPDX-License-Identifier: MIT OR GPL-2.0
// An SM's fault that was found fatal when it was serviced: contained if that can be, else cancelled. The function is the
// one that has the VA space locked, looks up the GPU VA space and cancels fault by fault. It also cancels, before it
// services any, faults of types that no entry in a page table cures: with a mode of its own, and left alone.

@@
identifier GVS;
expression E, GPU, S;
@@
  GVS = \(uvm_gpu_va_space_get_by_parent_gpu\|uvm_gpu_va_space_get\)(...);
  <...
(
- S = cancel_fault_precise_va(GPU, E, E->replayable.cancel_va_mode);
+ S = uvm_fault_isolation_contain(GVS, E);
+ if (S != NV_OK)
+     S = cancel_fault_precise_va(GPU, E, E->replayable.cancel_va_mode);
|
- S = cancel_fault_precise_va(E, E->replayable.cancel_va_mode);
+ S = uvm_fault_isolation_contain(GVS, E);
+ if (S != NV_OK)
+     S = cancel_fault_precise_va(E, E->replayable.cancel_va_mode);
)
  ...>
