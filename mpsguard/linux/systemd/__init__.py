"""The service manager: notifications, the descriptor store, handed-over sockets."""
