"""Triage: groups evidence by fault, knows what each Xid means, and names the culprits of incidents."""
