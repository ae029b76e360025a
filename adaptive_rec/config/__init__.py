"""The frozen configuration, the knobs that may change while a run trains, and the search for plugins."""
