"""Train all drafts on a GPU that is lent for a quarter of an hour, without network; see `__main__`."""
