"""From evidence to incidents and their remedies."""
