"""A session moves to another GPU of the host: copied in rounds while its program works on, then handed over."""
