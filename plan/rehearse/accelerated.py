"""`accelerate launch` in one process: its flags and its configuration file reach the script through
the environment, by accelerate's own code, and the script of one rank runs.
"""

import os
import runpy
import sys
from typing import Any, List


def run(arguments: List[str]) -> None:
    """Called with what follows `accelerate launch`."""
    import torch.distributed.run as elastic
    from accelerate.commands import launch

    args = launch.launch_command_parser().parse_args(arguments)

    def start(*_: Any) -> None:
        _begin(args)

    def alone(args: Any) -> None:
        os.environ.update(launch.prepare_simple_launcher_cmd_env(args)[1])
        _begin(args)

    elastic.run = start
    launch.simple_launcher = alone
    launch.launch_command(args)


def _begin(args: Any) -> None:
    script = args.training_script
    sys.argv = [script, *args.training_script_args]
    if args.module:
        sys.path[0] = os.getcwd()
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(script))
        runpy.run_path(script, run_name="__main__")
