"""Studies on the embedded pair: draft sources, merges, dynamic trees, acceptance rules and intervals."""
