// SPDX-License-Identifier: MIT OR GPL-2.0
// Sinks go before the page tree of a client that they are in.

@@
uvm_gpu_va_space_t *GVS;
@@
+ uvm_fault_isolation_gpu_va_space_deinit(GVS);
  uvm_page_tree_deinit(&GVS->page_tables);
