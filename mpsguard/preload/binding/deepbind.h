// Libraries loaded with RTLD_DEEPBIND look their symbols up in themselves and what they link before anything preloaded.
//
// Left alone, such a library would get plain memory, which does no harm, but could not free a region that another part
// of the program gave it. So their slots for the hooked functions (and for dlsym) are set to the hooks after loading.
#pragma once

// dlopen with RTLD_DEEPBIND. Returns the handle, or NULL to have the call passed on as it is.
void *deepbind_open(const char *file, int mode);

// Sets the slots of libraries that were loaded by a call that was passed on.
void deepbind_catch_up(void);
