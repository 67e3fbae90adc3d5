"""Values that are known though tensors hold no data, and what is assumed where they are not."""
