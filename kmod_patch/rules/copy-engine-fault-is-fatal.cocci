// SPDX-License-Identifier: MIT OR GPL-2.0
// A copy engine's or PBDMA's fault that is fatal. If it can be contained, its channel goes on as after any serviced fault;
// else the fault is told to tools, and later reported to RM. Nothing is added where it was serviced.

@found@
identifier F, GVS;
expression S, TRACKER;
expression list CLEAR, LOOKUP;
@@
F(...)
{
  <+...
  uvm_gpu_va_space_get_user_channel(GVS, LOOKUP)
  ...+>
}

@cleared@
identifier found.F;
expression S, TRACKER;
expression list CLEAR;
@@
F(...)
{
  <+...
  S = clear_faulted_on_gpu(CLEAR);
  uvm_tracker_clear(TRACKER);
  ...+>
}

@@
identifier found.F, found.GVS;
expression E, cleared.S, cleared.TRACKER;
expression list cleared.CLEAR, TOLD;
@@
F(...)
{
  <...
  if (E->is_fatal)
-     uvm_tools_record_gpu_fatal_fault(TOLD);
+ {
+     if (uvm_fault_isolation_contain(GVS, E) == NV_OK) {
+         E->is_fatal = false;
+         S = clear_faulted_on_gpu(CLEAR);
+         uvm_tracker_clear(TRACKER);
+     }
+     else {
+         uvm_tools_record_gpu_fatal_fault(TOLD);
+     }
+ }
  ...>
}
