"""Cost and extraction: which of the equal programs is run."""
