"""Run and time here."""
