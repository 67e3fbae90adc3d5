"""Programs of several GPUs seen from one rank: process groups, wrapped modules, shards, and stages of a pipeline."""
