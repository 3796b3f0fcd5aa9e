// SPDX-License-Identifier: MIT OR GPL-2.0
// An SM's fatal fault: contained if that can be, else cancelled. The function is the one that has the VA space locked,
// looks up the GPU VA space and cancels fault by fault; cancelling all after an error of UVM's own is another.

@@
identifier GVS;
expression E, GPU, MODE, S;
@@
  GVS = \(uvm_gpu_va_space_get_by_parent_gpu\|uvm_gpu_va_space_get\)(...);
  <...
(
+ S = uvm_fault_isolation_contain(GVS, E);
+ if (S != NV_OK)
      S = cancel_fault_precise_va(GPU, E, MODE);
|
+ S = uvm_fault_isolation_contain(GVS, E);
+ if (S != NV_OK)
      S = cancel_fault_precise_va(E, MODE);
)
  ...>
