"""What TorchDynamo captures of a program."""
