"""What can be configured, read from YAML, and the one place that makes objects of it."""
