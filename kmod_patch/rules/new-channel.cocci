// SPDX-License-Identifier: MIT OR GPL-2.0
// A channel is refused as it is when a VA space's channels have been stopped.

@@
identifier VS, GVS;
expression S;
@@
  UVM_ASSERT(!VS->disallow_new_registers);
  ...
  if (atomic_read(&GVS->disallow_new_channels))
      return S;
+ if (uvm_fault_isolation_admit(VS) != NV_OK)
+     return S;
