"""The copier: a process beside a session's writer that brings its checkpoints to the image store."""
