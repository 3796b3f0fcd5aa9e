"""Checkpoints of a session while it runs: the writer's side, and what it shares with the copier process."""
