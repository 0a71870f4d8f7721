"""Terms: operators, scopes and views, their types, canonical forms and values."""
