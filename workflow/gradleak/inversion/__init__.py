"""From the gradient of a classifier to images: MKOR's reconstruction."""
