"""Ways in: torch modules, the expression builder."""
