// The faults a client can commit, by name. One row of the table is one fault: add a kernel and a row.
//
// What stock MPS does with each (which Xid, who dies, with which error) is measured, not known from the manual; the
// comment beside a row says what was seen on an H200, driver 580.159.04.
#pragma once

#include <cstring>

namespace faults {

__global__ void trap_kernel() { asm volatile("trap;"); }

__global__ void store_kernel(unsigned long long address) { *reinterpret_cast<volatile int*>(address) = 42; }

struct Fault {
    const char* name;
    const char* what;
    void (*launch)();  // queues the faulting work and returns; the error shows at the next synchronisation
};

inline const Fault table[] = {
    // Xid 43; every client of the server dies with 719 after 0.37..0.43 s.
    {"trap", "a trap instruction (SM exception)", [] { trap_kernel<<<1, 1>>>(); }},
    // Xid 31; every client of the server dies with 700 after about 0.15 s.
    {"null", "a store to address 16 (MMU fault)", [] { store_kernel<<<1, 1>>>(16); }},
};

// The fault of that name, or null.
inline const Fault* find(const char* name) {
    for (const Fault& fault : table) {
        if (std::strcmp(fault.name, name) == 0) return &fault;
    }
    return nullptr;
}

}  // namespace faults
