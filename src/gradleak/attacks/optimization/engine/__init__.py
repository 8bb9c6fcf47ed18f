"""Gradient matching: gradients of many images at once, derivatives, and optimisers."""
