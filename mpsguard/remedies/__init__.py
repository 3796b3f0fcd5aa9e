"""What is done about incidents: one file a remedy."""
