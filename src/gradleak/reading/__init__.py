"""Read a PyTorch network: layers, an equivalent chain, gradients, counts and ranks."""
