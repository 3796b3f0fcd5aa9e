// SPDX-License-Identifier: MIT OR GPL-2.0
// A copy engine's fatal fault: contained if that can be, and then the channel goes on as after any serviced fault;
// else told to tools, and later reported to RM. How a channel goes on is taken from the function itself.

@how_a_channel_goes_on@
expression list ARGUMENTS;
expression TRACKER, S;
@@
  S = clear_faulted_on_gpu(ARGUMENTS, TRACKER);
  uvm_tracker_clear(TRACKER);

@@
expression list how_a_channel_goes_on.ARGUMENTS;
expression how_a_channel_goes_on.TRACKER, how_a_channel_goes_on.S;
expression list EVENT;
expression E;
identifier GVS;
@@
  GVS = \(uvm_gpu_va_space_get_by_parent_gpu\|uvm_gpu_va_space_get\)(...);
  ... when any
  if (E->is_fatal)
-     uvm_tools_record_gpu_fatal_fault(EVENT);
+ {
+     if (uvm_fault_isolation_contain(GVS, E) == NV_OK) {
+         E->is_fatal = false;
+         S = clear_faulted_on_gpu(ARGUMENTS, TRACKER);
+         uvm_tracker_clear(TRACKER);
+     }
+     else {
+         uvm_tools_record_gpu_fatal_fault(EVENT);
+     }
+ }
