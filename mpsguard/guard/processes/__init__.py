"""The processes of a guard, and the privileges of each."""
