"""What a GPU can do."""
