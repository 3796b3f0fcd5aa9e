// The objects of the copy at work in place of the program's: made of what was noted (objects.h), before a takeover or when
// one is first used.
#pragma once

#include "second/copies.h"
#include "second/objects.h"

// That copy's handle for one of the program's: made if need be, with all that it needs. What is not known is the
// copy's own, or a number that stands for a default stream, and stays. 0 if it cannot be made.
word rebuild_translate(word handle);

// The same for an object, whatever its handle stands for by now.
word rebuild_translate_object(object *o);

// What a call gets for a handle that could not be made: the loss of the second driver's own lane, if that is why.
mg_result rebuild_error(void);

// Makes the second driver's of all objects but graphs ahead of a takeover, loads their kernels, and ends what is of no use any more. Of
// instances of graphs, those of which all memory is there, and so many at most: a driver makes none while a lane that has just died is
// cleared. Under the lock of a takeover, with the second driver's context current; false if some are left, for one that waits for the
// lock, or as the program would be refused by now.
bool rebuild_ahead(int most);

// Ends those that the program has destroyed, and instances of memory that was unmapped there. Likewise.
bool rebuild_end_unused(void);

// At a takeover, once memory is there: what was made ahead gets the attributes that were set since, and streams and events are made. An
// instance that was made ahead for another one, or for other memory, is put aside, and made anew when it is used. False if that fails.
bool rebuild_at_takeover(void);

// After it: ends those that were put aside; `all`: all instances, for they are of no use to a program that was refused. False if some are
// left, for one that waits for the lock.
bool rebuild_end_instances(bool all);
bool rebuild_has_unused(bool all);

// At the commit: what was made ahead is the program's, and more can be made in another copy.
void rebuild_go_on(void);

// The program needs the memory that instances take: whether there are any, without a lock; and ends them. They are made at the takeover.
bool rebuild_has_instances(void);
void rebuild_give_up_instances(void);

// Makes those of all other graphs, once their memory is there: at a takeover when they are used, before a move is final all. False if
// that fails.
bool rebuild_graphs(void);

// There was no takeover after all, and the second driver's are of no use: none is made.
void rebuild_give_up(void);

// The program's handle for one of the copy at work, or that itself.
word rebuild_key_of(word native);

// What is found in an object under that name, or has no name, is made in the copy at work if the program knows it: it keeps its key there.
void rebuild_found(word parent, const char *name);

// The same for what it has just given to the program: where the handle is that of another object by which the program knows that, one of
// our own.
word rebuild_new_key(word native);

// A copy has destroyed it, and may give that handle to another one.
void rebuild_forget(word native);
