"""`python -m memroom` runs the command that was installed beside this package."""

import os
import shutil
import sys
import sysconfig


def main() -> int:
    command = os.path.join(sysconfig.get_path("scripts"), "memroom")
    found = command if os.path.exists(command) else shutil.which("memroom")
    if found is None:
        print(
            "memroom: the command is not installed here: install the wheel with pip, or put the "
            "binary on PATH",
            file=sys.stderr,
        )
        return 127
    os.execv(found, [found, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
