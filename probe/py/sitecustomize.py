"""Starts memroom's probe in every Python of a watched job, then steps aside. See
_memroom_probe/aside.py. Interpreters that the probe does not know (Python 2, 3.7 and older) are
left as they are: there is only the stepping aside.

Short, because a Python told not to write byte code compiles this file at every start.

"""

import sys

aside = None
if sys.version_info >= (3, 8):
    _users = sys.dont_write_bytecode
    # Our own folder may keep byte code: compiling takes longer than all the rest.
    sys.dont_write_bytecode = False
    try:
        from _memroom_probe import aside

        aside.start()
    except Exception:  # nothing that goes wrong here may reach the user
        pass
    finally:
        sys.dont_write_bytecode = _users
if aside is not None:
    aside.step_aside(__file__)
else:
    import os

    # Without our folder Python finds the sitecustomize that it would have found without us.
    _here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _here]
    del sys.modules["sitecustomize"]
    import sitecustomize  # noqa: F401  # where there is none the error is the one `site` expects
