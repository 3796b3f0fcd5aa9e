"""The stock MPS daemon, driven: handshake, commands, lane."""
