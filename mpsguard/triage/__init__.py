"""From evidence to incidents: what each Xid means, what belongs together, who did it."""
