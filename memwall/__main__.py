"""``python -m memwall``."""

import sys

from memwall.cli import main

if __name__ == "__main__":
    sys.exit(main())
