"""Questions asked of the embedded pair: how far predictions, rules and intervals may be trusted."""
