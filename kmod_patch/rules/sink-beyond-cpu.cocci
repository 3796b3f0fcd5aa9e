// SPDX-License-Identifier: MIT OR GPL-2.0
// What is mapped into a client's page tables, both GPU and CPU can address; a sink only the GPU has to. An assertion: no
// code in a release build.

@@
expression GPU, START, SIZE;
@@
- UVM_ASSERT(uvm_gpu_can_address(GPU, START, SIZE));
+ UVM_ASSERT(uvm_gpu_can_address(GPU, START, SIZE) || uvm_gpu_can_address_kernel(GPU, START, SIZE));
