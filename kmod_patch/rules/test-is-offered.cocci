// SPDX-License-Identifier: MIT OR GPL-2.0
// Beside the driver's own tests, which a parameter of the module makes available.

@@
@@
#include "uvm_test_ioctl.h"
+#include "uvm_fault_isolation_test.h"

@@
@@
  UVM_ROUTE_CMD_STACK_INIT_CHECK(UVM_TEST_RNG_SANITY, uvm_test_rng_sanity);
+ UVM_ROUTE_CMD_STACK_INIT_CHECK(UVM_TEST_FAULT_ISOLATION, uvm_fault_isolation_test);
