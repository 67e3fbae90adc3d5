"""A module for each picture. Matplotlib is imported where one is drawn."""
