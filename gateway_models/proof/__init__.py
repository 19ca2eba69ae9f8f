"""Parity, evaluation and tuning: proof that what is served is what was trained."""
