// SPDX-License-Identifier: MIT OR GPL-2.0
// The directory takes the list with it; what the list was made of goes after that.

@@
expression D;
@@
  void uvm_procfs_exit(void)
  {
  ...
  proc_remove(D);
+ uvm_fault_report_exit();
  ...
  }
