"""Small caches in what a module of tests measures."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="module", autouse=True)
def small_caches():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        yield
