// The thread that hands descriptors of this process's memory to other processes: to importers of legacy IPC (ipc.h)
// and to those that take a snapshot (snapshot.h).
//
// It listens on an abstract socket with a random name, sleeps until a connection comes, takes one request from each,
// and takes no signals. The first allocation starts it, since a process that is to be looked at has no other moment to
// do so; where snapshots are switched off, the first export. A child has neither the thread nor the state.
#pragma once

#include "process.h"

// Whether the thread runs; it is started if need be.
bool service_start(process *p);

// The same with the first allocation of ours, once, and unless snapshots are switched off. Cheap after that.
void service_begin(void);
