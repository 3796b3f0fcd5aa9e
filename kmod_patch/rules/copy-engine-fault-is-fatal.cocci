// SPDX-License-Identifier: MIT OR GPL-2.0
// A copy engine's fault outside of managed memory: if it is fatal and can be contained, the channel goes on as after any
// serviced fault, in what follows; else it is told to tools, and later reported to RM.

@@
identifier GVS;
expression E, MM, S, LOOKUP;
@@
  S = service_non_managed_fault(GVS, MM, E, LOOKUP);
+ if (E->is_fatal && uvm_fault_isolation_contain(GVS, E) == NV_OK)
+     E->is_fatal = false;
