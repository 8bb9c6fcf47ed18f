"""Functions for networks and gradients of your own: what ``import gradleak`` offers."""
