// SPDX-License-Identifier: MIT OR GPL-2.0
// The list of contained faults, in the module's directory of procfs.

@@
@@
#include "uvm_procfs.h"
+#include "uvm_fault_report.h"

@@
identifier D;
@@
  D = NV_CREATE_PROC_DIR(UVM_PROC_DIR_NAME, NULL);
  if (D == NULL)
      return NV_ERR_OPERATING_SYSTEM;
+ if (uvm_fault_report_init(D) != NV_OK)
+     return NV_ERR_OPERATING_SYSTEM;
