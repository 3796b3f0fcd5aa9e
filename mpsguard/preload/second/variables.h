// The variables of modules (__device__, __constant__): they lie in the first driver's own memory and end with it. While the
// program's streams are idle, a thread of ours reads them; the second driver's modules get what was read.
#pragma once

#include "second/copies.h"

// Answers cuModuleGetGlobal and cuLibraryGetGlobal of the copy at hand (`a` are their words, and `native` is what it calls the module or library).
//
// The program may put an address that it is told anywhere in its memory, and in another copy the variable lies elsewhere. So
// a variable of a library without kernels, which is known by its address alone, is given a place in memory that moves
// (cuBLAS has one such). Constants are read by kernels in another way. Any other one cannot be taken over.
mg_result variables_ask(const driver_copy *copy, function_id id, const word *a, word native);

// Lets go of the reason for those of which the image says that they are constants.
void variables_answer(void);

// Where such a variable was given a place: it is asked for again after a takeover. False if it was not.
bool variables_place(word library, const char *name, word *address, word *size);

// The library is unloaded; its handle may be another one's soon.
void variables_forget(word library);

// Finds the variables of modules that are new in use, in the copy at hand: once for each module, and that may take 0.1 s.
// While no call is under way. False if that is not possible now.
bool variables_look(void);

// Reads the variables of all modules in use, also of new ones. `total` is the work enqueued before. False if
// that is not possible now.
bool variables_save(uint64_t total);

// Whether all is read since that much work was enqueued.
bool variables_are_saved(uint64_t total);

// At the commit: they are read again before the next one.
void variables_go_on(void);

// The second driver has its own of a module or library of that key: before a takeover, what it has at first is kept;
// afterwards it gets what was read.
bool variables_module_made(word key, word second_module, bool taken_over);

// Ahead of a takeover: finds those of modules that the second driver had before they were looked at.
bool variables_ahead(void);

// At a takeover: those that the second driver has already get what was read, where that differs.
bool variables_restore(void);

// The other way: what the copy at hand has in them by now is what counts as read, for the next one.
bool variables_take(void);

// Where a variable of which the program knows the address lies in the copy at work; another address is returned as it is. `owner` is set to the
// module or library that has to be made first, and 0 if none.
word variables_translate(word address, word *owner);

// Whether it is the address of one.
bool variables_have(word address);
