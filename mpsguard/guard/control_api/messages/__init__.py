"""What each command asks of the guard and what the guard answers, one module a subject.

Both sides import these: they load neither an event loop nor anything of the guard's that needs one.
"""
