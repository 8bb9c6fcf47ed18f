"""Read a network: layers, weights, preprocessing, structure."""
