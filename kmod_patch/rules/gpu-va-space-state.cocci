// SPDX-License-Identifier: MIT OR GPL-2.0
// Room for the state of a GPU VA space, at the end of its structure.

@@
@@
struct uvm_gpu_va_space_struct {
  ...
  uvm_ats_gpu_va_space_t ats;
+ uvm_gpu_va_space_isolation_t isolation;
};
