"""The commands of the control API, carried out: one module a subject."""
