"""What is saved."""
