"""Studies on the embedded pair: how far predictions, acceptance rules and intervals can be trusted."""
