"""File descriptors: bundled, copied, closed, fenced, made of memory."""
