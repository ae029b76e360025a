"""A kit for self-contained HTML pages with plots, from which report, compare, profile and simulate build theirs."""
