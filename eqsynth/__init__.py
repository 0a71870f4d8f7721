"""eqsynth: an equality-saturation optimizer for tensor programs."""
