"""What the sources without a model share: matches, counts, datastores, and trees of continuations."""
