"""What only one paper computes or draws: a folder for each."""
