"""The guard on a node of Kubernetes: a simulated kubelet, API server and NVSentinel beside it."""
