// SPDX-License-Identifier: MIT OR GPL-2.0
// Where a VA space that was handed out ends: no report runs any more.

@@
expression VS;
@@
+ uvm_fault_isolation_va_space_deinit(VS);
  uvm_kvfree(VS->mapping);
