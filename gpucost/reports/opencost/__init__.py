"""OpenCost's figures beside ours, and every difference under the name of what makes it. Pure."""
