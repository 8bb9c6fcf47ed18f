"""Training engine: data on the device, safe checkpoints, the best epoch by validation."""
