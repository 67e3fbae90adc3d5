"""No cache with more than 8 MiB, in a process of the tests whose ``PYTHONPATH`` has this folder: clearing half a
gigabyte of a large machine before each sample would take most of a test."""

from memwall.bench import machine

_cache_bytes = machine.cache_bytes
machine.cache_bytes = lambda: {name: min(size, 8 << 20) for name, size in _cache_bytes().items()}
