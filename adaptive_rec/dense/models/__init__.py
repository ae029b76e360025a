"""The dense part of a model. Embedding rows come in as pooled vectors."""
