"""Adapters for training frameworks. Each needs the library that it is named after."""
