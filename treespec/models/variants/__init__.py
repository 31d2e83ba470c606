"""Models made of other models: enlarged, shortened, or spread over devices."""
