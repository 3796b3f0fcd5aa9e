"""Hostile input, made from a seed and a number, for everything that reads what a stranger can write."""
