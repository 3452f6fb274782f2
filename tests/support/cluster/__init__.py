"""A small simulated Kubernetes control plane: an API server over HTTP, and controllers that change it."""
