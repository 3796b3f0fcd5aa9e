"""A guard as a real process, for tests and GPU suites alike: start, readiness, public sockets, what is left behind."""
