"""Images: a program's memory on disk, and what takes, brings, keeps and starts it. Needs neither a guard nor root."""
