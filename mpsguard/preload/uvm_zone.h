// Arming a zone: a managed range over reserved addresses, made by mapping CUDA's own descriptor of the UVM device there.
//
// A GPU's access to a managed range is served by the driver with a page of its own and told to the tools queue; no
// process dies of it. UVM takes a mapping only at the offset that equals its address, and only of the descriptor that holds the
// VA space; CUDA has two, and the other one answers EBADFD (open-gpu-kernel-modules, uvm.c:uvm_mmap).
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

// The descriptor that was found to be the VA space. CUDA owns it: it is not copied, because a copy would keep the
// address space alive, and it is looked at again before each use.
typedef struct {
    int fd;  // -1: not found yet
    dev_t device;
    ino_t inode;
    unsigned failed;  // searches in a row that found none
} uvm_space;

// What lay at a zone's addresses before it was armed.
typedef enum { UVM_WAS_UNMAPPED, UVM_WAS_MAPPED } uvm_before;

// Arms `length` bytes at `start`, addresses that the caller has reserved from CUDA. False if that cannot be done; then
// the addresses are as before.
bool uvm_arm(uvm_space *space, const char *path, uint64_t start, uint64_t length, uvm_before *before);

// Ends the managed range and leaves the addresses as they were before it was armed.
void uvm_disarm(uint64_t start, uint64_t length, uvm_before before);
