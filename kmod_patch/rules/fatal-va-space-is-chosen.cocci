// SPDX-License-Identifier: MIT OR GPL-2.0
// Faults of one VA space at a time are cancelled, or contained: those of the one that waits the longest.

@@
identifier BC;
expression VS;
@@
- if (!BC->fatal_va_space)
+ if (!BC->fatal_va_space || uvm_fault_isolation_goes_first(VS, BC->fatal_va_space))
(
  {
    ...
    BC->fatal_va_space = VS;
    ...
  }
|
  BC->fatal_va_space = VS;
)
