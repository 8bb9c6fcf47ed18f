"""MKOR's reconstruction: from the gradient of a classifier to images."""
