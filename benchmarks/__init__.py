"""What eqsynth is measured on, and the measuring itself; nothing here is part of the package."""
