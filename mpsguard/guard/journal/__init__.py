"""The journal: incidents, evidence and decisions on disk."""
