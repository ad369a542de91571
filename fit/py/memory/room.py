"""How much memory there is for activations: the wall, what is held, and what will be held that is
not there yet.
"""

import os
from typing import Any

import torch

from ... import context, made
from .heap import give_back_at_once, heap

made.install(torch)

# share of the wall that is planned with; the rest is for fragmentation and what was not foreseen
SAFETY = 0.94
# bytes that are not planned with on a small card: what is free lies in pages that hold a little
SCATTERED = 64 << 20
# code of kernels that are still to be loaded when a training begins
MOST_CODE = 256 << 20
HOST_SHARE = 0.5  # of the free host memory that activations of a card may take
MIB = 1 << 20


def words(count: float) -> str:
    """Bytes as people write them, and as the rest of memroom does: 1.5GiB, -2MiB."""
    sign = "-" if count < 0 else ""
    size = abs(float(count))
    units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while round(size, 2) >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return "%s%s%s" % (sign, ("%.2f" % size).rstrip("0").rstrip("."), units[0])


def of(device: Any, limit: Any = None) -> Any:
    return CudaRoom(device, limit) if device.type == "cuda" else HostRoom(limit)


class CudaRoom:
    """A card, as far as this process may use it. limit: bytes the allocator may reserve, if
    somebody knows better.
    """

    is_card = True

    def __init__(self, device: Any, limit: Any = None) -> None:
        self.device = device
        properties = torch.cuda.get_device_properties(device)
        total = properties.total_memory
        fraction = getattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 1.0)(device)
        free = torch.cuda.mem_get_info(device)[0]
        walls = [int(total * fraction), torch.cuda.memory_reserved(device) + free]
        self.limit = min(walls + ([int(limit)] if limit else []))
        if "MEMROOM_GPU_MEM" in os.environ:  # the context counts against it, and still grows
            now = max(0, int(os.environ["MEMROOM_GPU_MEM"]) - int(total * fraction))
            self.limit -= min(MOST_CODE, max(0, context.card(properties).usual() - now))

    def held(self) -> Any:
        return torch.cuda.memory_allocated(self.device)

    def start_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    def wait(self) -> None:
        torch.cuda.synchronize(self.device)

    def peak(self) -> Any:
        return torch.cuda.max_memory_allocated(self.device)

    def kept(self) -> Any:
        """Bytes that the allocator has, in use or not."""
        return torch.cuda.memory_reserved(self.device)

    def flushes(self) -> Any:
        """How often the allocator has given back all that it kept, because a request found no room.
        Each time it waits for the card and asks the driver anew: milliseconds.
        """
        return torch.cuda.memory_stats(self.device).get("num_alloc_retries", 0)


class HostRoom:
    """Host memory, for training on the CPU, as far as this process may use it. Without a limit from
    outside the lowest cgroup limit that is found counts. Ranks of one job share what there is.
    """

    is_card = False

    def __init__(self, limit: Any = None) -> None:
        whole = int(limit) if limit else _cgroup_limit()
        give_back_at_once()
        job = _of_cgroup()
        # Pages of libraries count too: a cgroup that has no room for them crawls before it kills.
        pages = job["mapped"] if job else UNKNOWN_PAGES * whole
        usable = whole - min(max(pages, FEWEST_PAGES * whole), UNKNOWN_PAGES * whole)
        ranks = _ranks_here()
        own = self.held()
        if job and job["held"] > own:  # other processes of the job: ranks, a launcher, workers
            self.limit = int(max(own + (usable - job["held"]) / ranks, usable / ranks / 2))
        else:
            self.limit = int(usable / ranks)
        self._before = 0

    def held(self) -> Any:
        """What cannot be dropped; pages of libraries can."""
        own = _status()
        return own.get("RssAnon", 0) + own.get("RssShmem", 0)

    def start_peak(self) -> None:
        """The kernel's high-water mark begins anew, where it lets us. Holes of the heap would hide
        what is taken from now on.
        """
        heap.give_back(at_once=True)
        try:
            with open("/proc/self/clear_refs", "w") as f:
                f.write("5")
        except OSError:
            pass
        self._before = _status().get("VmHWM", 0)

    def wait(self) -> None:
        pass

    def flushes(self) -> Any:
        return 0

    def peak(self) -> Any:
        own = _status()
        held = own.get("RssAnon", 0) + own.get("RssShmem", 0)
        if own.get("VmHWM", 0) <= self._before:
            return held
        return max(held, own["VmHWM"] - own.get("RssFile", 0))


# Share of the limit that is left to pages of libraries where nobody knows how many there are, and
# at the least.
UNKNOWN_PAGES, FEWEST_PAGES = 0.2, 0.05


def _status() -> Any:
    """The bytes that the kernel counts for this process, by name."""
    with open("/proc/self/status") as f:
        lines = [line.split() for line in f if line.startswith(("Rss", "VmHWM"))]
    return {name.rstrip(":"): int(count) * 1024 for name, count, *_ in lines}


def _of_cgroup() -> Any:
    """Bytes that all processes of the job hold and that they have mapped of files, from the cgroup
    that memroom made for it; None where there is none.
    """
    try:
        folder = _job_folder()
        if folder is None:
            return None
        with open(folder + "/memory.stat") as f:
            stat = {name: int(count) for name, count in (line.split() for line in f)}
        held = stat.get("anon", stat.get("total_rss", 0))
        held += stat.get("shmem", stat.get("total_shmem", 0))
        return {"held": held, "mapped": stat.get("file_mapped", stat.get("total_mapped_file"))}
    except (OSError, ValueError):
        return None


def _job_folder() -> Any:
    """Where the kernel shows the cgroup that memroom made for the job; None where there is none."""
    with open("/proc/self/cgroup") as f:
        paths = [line.strip().split(":", 2)[1:] for line in f]
    for kinds, path in paths:
        if ("memory" in kinds.split(",") or not kinds) and "/memroom-" in path:
            return ("/sys/fs/cgroup/memory" if kinds else "/sys/fs/cgroup") + path
    return None


def is_one_of_several_ranks() -> Any:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _ranks_here() -> Any:
    """Processes on this machine that train together."""
    if not is_one_of_several_ranks():
        return 1
    size = torch.distributed.get_world_size()
    here = os.environ.get("LOCAL_WORLD_SIZE", "")
    return min(size, int(here)) if here.isdigit() and int(here) else size


def host_free() -> Any:
    """Bytes of host memory that are free: of the machine, and below the limit of each cgroup."""
    free = []
    with open("/proc/meminfo") as f:
        free += [int(line.split()[1]) * 1024 for line in f if line.startswith("MemAvailable:")]
    for folder, limit in _limits():
        for name in ("/memory.current", "/memory.usage_in_bytes"):
            try:
                with open(folder + name) as f:
                    free.append(limit - int(f.read()) + _dropped_for_others(folder + name))
            except (OSError, ValueError):
                pass
    return max(0, min(free, default=0))


def _dropped_for_others(path: str) -> Any:
    """Bytes of file pages in the cgroup, which the kernel drops when somebody needs room."""
    try:
        with open(os.path.join(os.path.dirname(path), "memory.stat")) as f:
            stat = dict(line.split() for line in f)
        return int(stat.get("inactive_file") or stat.get("total_inactive_file") or 0)
    except (OSError, ValueError):
        return 0


def _cgroup_limit() -> Any:
    """The lowest limit on host memory that is found: of a cgroup, or the machine's own memory."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine] + [limit for _, limit in _limits()])


def _limits() -> Any:
    """The cgroups that hold this process, the one that memroom made for the job among them, as far
    as they have a limit: folders and bytes.
    """
    places = ["/sys/fs/cgroup", "/sys/fs/cgroup/memory"]
    try:
        own = _job_folder()
        places += [own] if own else []
    except (OSError, ValueError):
        pass
    found = []
    for folder in places:
        for name in ("/memory.max", "/memory.limit_in_bytes"):
            try:
                with open(folder + name) as f:
                    text = f.read().strip()
                if text.isdigit() and int(text) < 1 << 60:
                    found.append((folder, int(text)))
            except OSError:
                pass
    return found


def size_of(tensor: torch.Tensor) -> Any:
    """Bytes that lie on this rank."""
    here = getattr(tensor, "_local_tensor", tensor)  # of a tensor that is spread over ranks
    return here.numel() * here.element_size()


def gradient_size(grad: torch.Tensor) -> Any:
    """Bytes of a gradient. That of a sparse table has rows for what was looked up only."""
    if grad.layout == torch.sparse_coo:
        return size_of(grad._values()) + size_of(grad._indices())
    return size_of(grad)


def gradients_of(module: torch.nn.Module) -> Any:
    """Bytes of the gradients that are there."""
    return sum(
        gradient_size(p.grad) for p in module.parameters() if p.requires_grad and p.grad is not None
    )


def state_to_come() -> Any:
    """Bytes of optimizer state that the first steps will add for good."""
    return sum(state_of(o) for o in optimizers())


def first_step() -> Any:
    """(bytes that the first step of torch's own optimizers keeps for certain, bytes that it makes
    for a moment at the least). Adam makes the root of its second average, of one parameter at a
    time; the others may need nothing.
    """
    adams = (torch.optim.Adam, torch.optim.AdamW)
    known = (*adams, torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adagrad)
    kept = sum(state_of(o) for o in optimizers() if type(o) in known)
    made = [
        size_of(p)
        for o in optimizers()
        for group in o.param_groups
        for p in group["params"]
        if type(o) in adams and p.requires_grad and not group.get("fused")
    ]
    return kept, max(made, default=0)


def state() -> Any:
    """Bytes of optimizer state that are there."""
    return sum(
        size_of(t)
        for o in optimizers()
        for s in o.state.values()
        for t in s.values()
        if isinstance(t, torch.Tensor)
    )


def optimizers() -> Any:
    """Every optimizer of the process. One that stands in front of another, as trainers put them
    there, shares its state and is not counted beside it.
    """
    found = [o for o in made.optimizers.live() if hasattr(o, "param_groups")]
    return list({id(o.state): o for o in reversed(found)}.values())[::-1]


def state_of(optimizer: Any) -> Any:
    """Bytes of state that an optimizer's first step will add."""
    total = 0
    for group in optimizer.param_groups:
        per_element = _copies(optimizer, group)
        for p in group["params"]:
            if p.requires_grad and not optimizer.state.get(p):
                total += per_element * size_of(p)
    return total


def _copies(optimizer: Any, group: Any) -> Any:
    """Tensors of a parameter's size that an optimizer keeps for it. An unknown one is taken for
    Adam.
    """
    name = type(optimizer).__name__.lower()
    if "adafactor" in name:
        return 0
    if name == "sgd":
        return 1 if group.get("momentum") else 0
    if name in ("lion", "adagrad"):
        return 1
    if name == "rmsprop":
        return 1 + bool(group.get("momentum")) + bool(group.get("centered"))
    return 3 if group.get("amsgrad") else 2
