"""Settings of config files, checked and resolved when loaded."""
