"""``python -m memwall``."""

import os
import sys

if __name__ == "__main__":
    # python -m looks for modules in the current folder first, where a math.py or json.py would hide Python's own; the
    # folder of a model is found without it
    if sys.path[:1] == [os.getcwd()]:  # noqa: PTH109  pathlib may be what is hidden
        del sys.path[0]
    from memwall.cli import main

    sys.exit(main())
