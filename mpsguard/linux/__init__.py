"""Thin, typed wrappers of the Linux system calls the guard stands on."""
