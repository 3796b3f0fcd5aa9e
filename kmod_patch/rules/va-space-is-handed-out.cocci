// SPDX-License-Identifier: MIT OR GPL-2.0
// The owner is noted before anybody else can use a new VA space for a GPU.

@@
uvm_va_space_t *VS;
uvm_va_space_t **OUT;
@@
+ uvm_fault_isolation_va_space_init(VS);
  *OUT = VS;
