// The faults a client can commit, by name: one row is one fault.
//
// `../faults.toml` has the same names with what each does and what stock MPS makes of it; a test holds the two together.
#pragma once

#include <cstring>

#include "memory_faults.cuh"
#include "process_faults.cuh"
#include "sm_faults.cuh"

namespace faults {

struct Fault {
    const char* name;
    Commit (*prepare)();  // the error of what is committed shows at the next synchronisation
};

inline const Fault table[] = {
    {"null", memory::null},
    {"near", memory::near},
    {"far", memory::far},
    {"farread", memory::far_read},
    {"huge", memory::huge},
    {"freed", memory::freed},
    {"reserved", memory::reserved},
    {"readonly", memory::read_only},
    {"hostptr", memory::host_pointer},
    {"atomic", memory::atomic},
    {"jump", memory::jump},
    {"managed", memory::managed},
    {"bulkcopy", memory::bulk_copy},
    {"copy", memory::unmapped_copy},
    {"misaligned", sm::misaligned},
    {"shared", sm::shared},
    {"stack", sm::stack},
    {"trap", sm::trap},
    {"illegal", sm::illegal_instruction},
    {"assert", sm::device_assert},
    {"endless", process::endless},
    {"kill", process::killed_busy},
    {"killidle", process::killed_idle},
    {"segv", process::segv},
    {"oom", process::out_of_memory},
    {"exit", process::exit_busy},
    {"exitidle", process::exit_idle},
};

// The fault of that name, or null.
inline const Fault* find(const char* name) {
    for (const Fault& fault : table) {
        if (std::strcmp(fault.name, name) == 0) return &fault;
    }
    return nullptr;
}

}  // namespace faults
