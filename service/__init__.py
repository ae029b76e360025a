"""The HTTP sidecar's room. Training never imports it."""
