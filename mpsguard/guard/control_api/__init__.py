"""The control API: messages, server, and an asynchronous client."""
