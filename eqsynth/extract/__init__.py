"""Cost model and extraction: choose the fastest of the equal programs in an e-graph."""
