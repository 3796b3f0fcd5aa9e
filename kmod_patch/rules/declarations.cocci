// SPDX-License-Identifier: MIT OR GPL-2.0
// Who knows a VA space knows what is in this header.

@@
@@
#include "uvm_va_block_types.h"
+#include "uvm_fault_isolation.h"
