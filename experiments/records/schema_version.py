"""The version of what a run writes."""

SCHEMA_VERSION = 4
"""Version of rows and manifests; SCHEMA.md says what each version changed."""
