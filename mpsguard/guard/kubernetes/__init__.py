"""A node of Kubernetes: its pods, and faults told to the API server and to NVSentinel. A process beside the guard."""
