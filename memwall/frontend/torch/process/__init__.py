"""The process in which a model is built and traced: what it says of devices and CUDA, its settings, its failures."""
