"""What is done about incidents: one file a remedy, and the pure policy that says which of them follow."""
