"""Dense models. Their inputs are dense features and pooled vectors of embedding rows."""
