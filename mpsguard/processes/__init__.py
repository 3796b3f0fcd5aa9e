"""The processes a guard consists of, and what each of them may do."""
