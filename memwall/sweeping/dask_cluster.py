"""A Dask cluster of this machine that nobody but its starter can talk to, whoever else is on the machine: every port
speaks TLS with a key that is made for it and never leaves these processes, and no port answers HTTP."""

from __future__ import annotations

import logging
from typing import Any

from distributed import Nanny, Scheduler, Security, SpecCluster, Worker


class _Closed:
    """A node without the HTTP server that others have, dashboard or not."""

    def start_http_server(self, *arguments: Any, **named: Any) -> None:
        """Start none."""


class _Scheduler(_Closed, Scheduler):
    pass


class _Worker(_Closed, Worker):
    pass


def cluster(workers: int, folder: str) -> SpecCluster:
    """Processes of one thread each, which write into ``folder`` what does not fit in their memory. Needs cryptography
    for the key."""
    common: dict[str, Any] = {
        "security": Security.temporary(),
        "protocol": "tls://",
        "host": "127.0.0.1",
        "dashboard": False,
    }
    own = {
        "nthreads": 1,
        "memory_limit": 1 / workers,
        "local_directory": folder,
        "worker_class": _Worker,
        "heartbeat_interval": "5s",
        "silence_logs": logging.WARN,
    }
    worker = {"cls": Nanny, "options": common | own}
    return SpecCluster(
        workers=dict.fromkeys(range(workers), worker),
        worker=worker,
        scheduler={"cls": _Scheduler, "options": common},
        security=common["security"],
        silence_logs=logging.WARN,
    )
