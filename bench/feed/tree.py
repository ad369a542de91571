"""What a process and all its descendants use: processor time and memory, read from /proc."""

import os
from typing import Dict, List

TICKS = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> List[int]:
    found = [pid]
    for process in found:
        try:
            for task in os.listdir("/proc/%d/task" % process):
                with open("/proc/%d/task/%s/children" % (process, task)) as file:
                    found.extend(map(int, file.read().split()))
        except OSError:
            pass  # it has ended
    return found


def seconds(pid: int) -> float:
    """Processor time of the tree, with descendants that have ended and were waited for."""
    total = 0
    for process in tree(pid):
        try:
            with open("/proc/%d/stat" % process) as file:
                total += sum(map(int, file.read().rsplit(")", 1)[1].split()[11:15]))
        except OSError:
            pass
    return total / TICKS


def memory(pid: int) -> int:
    """Anonymous and shared memory of the tree, in bytes; a shared page counts once. Pages of files
    are left out: the kernel can drop them."""
    total = 0
    for process in tree(pid):
        fields: Dict[str, int] = {}
        try:
            with open("/proc/%d/smaps_rollup" % process) as file:
                for line in file:
                    name, _, value = line.partition(":")
                    if name.startswith("Pss_"):
                        fields[name] = int(value.split()[0]) << 10
        except OSError:
            continue
        total += fields.get("Pss_Anon", 0) + fields.get("Pss_Shmem", 0)
    return total
