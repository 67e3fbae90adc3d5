"""Any block of code, recorded as it runs: ``with memwall.trace()``.

``trace`` is the context manager: start there. ``recorder`` is that of :mod:`memwall.frontend.torch` for tensors that
were not registered before.
"""
