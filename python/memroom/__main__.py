"""`python -m memroom` runs the command that was installed with this package."""

import os
import sys

from .command import find


def main() -> int:
    try:
        found = find()
    except RuntimeError as missing:
        print(missing, file=sys.stderr)
        return 127
    os.execv(found, [found, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
