// SPDX-License-Identifier: MIT OR GPL-2.0
// A copy engine's or PBDMA's fault, after it was looked at: if it is fatal and can be contained, its channel goes on as after
// any serviced fault, in what follows; else it is told to tools, and later reported to RM.

@found@
identifier F, GVS;
expression list LOOKUP;
@@
F(...)
{
  <+...
  uvm_gpu_va_space_get_user_channel(GVS, LOOKUP)
  ...+>
}

@@
identifier found.F, found.GVS;
expression E, S;
expression list CLEAR;
statement LAST;
@@
F(...)
{
  <...
+ if (E->is_fatal && uvm_fault_isolation_contain(GVS, E) == NV_OK)
+     E->is_fatal = false;
  if (S == NV_OK && !E->is_fatal) {
      S = clear_faulted_on_gpu(CLEAR);
      LAST
  }
  ...>
}
