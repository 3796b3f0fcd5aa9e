"""Files and directories: locks, replacement, logs that grow, notification."""
