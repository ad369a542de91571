"""Starts memroom's probe in every Python of a watched job, then steps aside. See
_memroom_probe/aside.py.

Short, because a Python told not to write byte code compiles this file at every start.

"""

import sys

_users = sys.dont_write_bytecode
sys.dont_write_bytecode = (
    False  # our own folder may keep byte code: compiling takes longer than all the rest
)
try:
    from _memroom_probe import aside

    aside.start()
except Exception:  # nothing that goes wrong here may reach the user
    pass
finally:
    sys.dont_write_bytecode = _users
aside.step_aside(__file__)
