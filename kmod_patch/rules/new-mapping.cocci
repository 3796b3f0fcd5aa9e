// SPDX-License-Identifier: MIT OR GPL-2.0
// Memory or a sparse mapping in an external range, with the range's tree locked. To unmap stays allowed.

@@
identifier VS, L;
expression S, LOCK;
expression list REST;
@@
  uvm_va_space_t *VS = ...;
  <...
  uvm_mutex_lock(LOCK);
+ S = uvm_fault_isolation_admit(VS);
+ if (S != NV_OK)
+     goto L;
  S = uvm_unmap_external_in_range(REST);
  if (S != NV_OK)
      goto L;
  ...>
