"""Calls → ops: the dispatch mode that records each call, and the form that a CUDA device would run of it."""
