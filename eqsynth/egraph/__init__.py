"""The e-graph: encoding, saturation, derivations, proofs."""
