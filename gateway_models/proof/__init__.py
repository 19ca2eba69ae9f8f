"""Parity, evaluation and tuning: checks that the served model gives the trained network's answers."""
