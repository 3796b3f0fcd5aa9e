// SPDX-License-Identifier: MIT OR GPL-2.0
// Room for the state of a VA space, at the end of its structure.

@@
@@
struct uvm_va_space_struct {
  ...
  nv_kthread_q_item_t deferred_release_q_item;
+ uvm_va_space_isolation_t isolation;
};
