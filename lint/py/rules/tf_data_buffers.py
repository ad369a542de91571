"""Dataset held by cache or shuffle.

severity: info
remedy: tf_data_budget

Both work on what comes before them. After decoding, that is tensors, not file names.

Instead: Shuffle file names before the map that decodes, use a smaller shuffle buffer, and give
cache() a file name: cache("/scratch/cache").
"""

import ast
import re
from typing import Any, Iterator, Optional, Set

from ..findings import Finding, finding
from ..names import File, constant, key, keyword, method, own, walk
from ..tensorflow import small_set

LARGE_BUFFER = 10000  # elements


_HELD_OUT = re.compile(r"(^|_)(val|valid|validation|test|dev|eval)(_|$)", re.I)


def _for_validation(file: File, call: ast.Call) -> bool:
    """val_set = val_set.map(decode).cache(): a small part of the samples"""
    return any(
        isinstance(s, ast.Assign)
        and any(n is call for n in own(s))
        and any(_HELD_OUT.search(key(t) or "") for t in s.targets)
        for s in file.statements
    )


def data_buffers(file: File) -> Iterator[Finding]:
    """cache() of decoded data in memory, shuffle buffers that hold it whole"""
    if "tensorflow" not in file.modules:
        return
    for call in file.nodes:
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        steps = _steps_before(file, call)
        if "take" in steps and _takes_few(call):
            continue
        if call.func.attr == "shuffle" and "from_tensor_slices" in steps:
            if not steps & {"map", "interleave", "batch"}:
                if _buffer(file, call) == "all" and not _of_names(call):
                    yield finding(
                        "tf-data-buffers",
                        call,
                        "shuffle() fills its buffer with a copy of every sample before the first "
                        "batch comes: shuffle indexes or file names and read the samples behind it",
                        hint=True,
                    )
                continue
        if not steps & {"list_files", "TFRecordDataset", "map", "from_generator", "interleave"}:
            continue
        decoded = bool(steps & {"map", "from_generator", "image_dataset_from_directory"})
        if call.func.attr == "cache" and not call.args and not call.keywords and decoded:
            yield finding(
                "tf-data-buffers",
                call,
                "cache() without a file name keeps the whole decoded dataset in host memory",
                hint=not _decodes_media(file)
                or small_set(file, None)
                or _chosen(file, call)
                or _for_validation(file, call)
                # a published set, whose size is known to whoever chose it
                or "tensorflow_datasets" in file.modules,
            )
        elif call.func.attr == "shuffle" and "batch" in steps:
            size = _buffer(file, call)
            if isinstance(size, int) and size >= 1000:
                yield finding(
                    "tf-data-buffers",
                    call,
                    "shuffle() stands behind batch(): its buffer holds %d whole batches" % size,
                    hint=not _decodes_media(file) or small_set(file, None),
                )
        elif call.func.attr == "shuffle" and decoded:
            size = _buffer(file, call)
            if size == "all" or isinstance(size, int) and size >= LARGE_BUFFER:
                yield finding(
                    "tf-data-buffers",
                    call,
                    "shuffle() holds %s decoded samples in host memory: its buffer fills before "
                    "the first batch comes" % ("all" if size == "all" else size),
                    hint=not _decodes_media(file) or small_set(file, size),
                )


_NAMES = re.compile(r"path|file|folder|name|line|text|sentence|ids?$|index|label", re.I)


def _of_names(call: ast.Call) -> bool:
    """from_tensor_slices(paths).shuffle(len(paths)): a few bytes each"""
    return any(
        isinstance(n, (ast.Name, ast.Attribute)) and _NAMES.search((key(n) or "").split(".")[-1])
        for n in walk(call)
    )


def _chosen(file: File, call: ast.Call) -> bool:
    """if path: data = data.cache(path) else: data = data.cache()"""
    return any(
        isinstance(i, ast.If)
        and i.orelse
        and any(n is call for b in i.orelse for n in walk(b))
        and any(
            isinstance(n, ast.Call) and method(n) == "cache" and n.args
            for b in i.body
            for n in walk(b)
        )
        for i in file.nodes
    )


_MEDIA = re.compile(
    r"decode_(jpeg|png|image|wav|gif|bmp|raw)|read_file|imread|image_dataset|audio_dataset|"
    r"librosa|soundfile|resize|^load$|spectrogram|stft|mfcc|(^|_)(mels?|audios?|wavs?)($|_)|"
    r"_decode$|\.(jpe?g|png|bmp|tiff?|gif|wav|mp3|flac|mp4|avi|npy|npz)$|"
    r"(^|_|/)(img|image|photo|frame|video)s?($|_|/)",
    re.I,
)


def _decodes_media(file: File) -> bool:
    """Are there images, sound or arrays in files? Text and tables are small when decoded."""
    return any(
        _MEDIA.search(method(n) if isinstance(n, ast.Call) else str(n.value))
        for n in file.nodes
        if isinstance(n, ast.Call)
        or isinstance(n, ast.Constant)
        and isinstance(n.value, str)
        and len(n.value) < 40
    )


def _takes_few(call: ast.Call) -> bool:
    """dataset.take(1).cache()"""
    return any(
        isinstance(n, ast.Call)
        and method(n) == "take"
        and n.args
        and isinstance(constant(n.args[0]), int)
        and constant(n.args[0]) <= 1000
        for n in walk(call.func)
    )


def _buffer(file: File, call: ast.Call) -> Any:
    """The shuffle buffer: a number, "all" where it is the dataset's length, else None."""
    size = call.args[0] if call.args else keyword(call, "buffer_size")
    if isinstance(size, ast.Constant):
        return size.value
    if isinstance(size, ast.Call) and method(size) in ("len", "cardinality"):
        return "all"
    if isinstance(size, ast.Call) and method(size) == "int" and len(size.args) == 1:
        size = size.args[0]
    if isinstance(size, ast.Subscript) and (key(size.value) or "").endswith(".shape"):
        return "all"
    name = key(size) if size is not None else None
    for n in file.nodes if name else ():
        if isinstance(n, ast.Assign) and any(key(t) == name for t in n.targets):
            if isinstance(n.value, ast.Call) and method(n.value) in ("len", "cardinality"):
                return "all"
            if isinstance(constant(n.value), int):
                return constant(n.value)
    return None


def _steps_before(file: File, call: Any) -> Set[str]:
    """The names of the calls that made the dataset: in the chain, and through one variable."""
    steps, node, hops = set(), call.func.value, 0
    while True:
        if isinstance(node, ast.Call):
            steps.add(method(node))
            node = node.func.value if isinstance(node.func, ast.Attribute) else None
        elif isinstance(node, ast.Name) and hops < 20:
            hops += 1
            before = _last_assignment(file, node)
            if before is None:
                return steps
            node = before.value
        else:
            return steps


def _last_assignment(file: File, name: ast.Name) -> Optional[ast.Assign]:
    """The assignment to this name that stands last before it."""
    found = None
    for s in file.statements:
        if s.lineno >= name.lineno or name.lineno <= (s.end_lineno or 0):
            continue
        if isinstance(s, ast.Assign) and any(
            isinstance(n, ast.Name) and n.id == name.id for t in s.targets for n in walk(t)
        ):
            if _in_other_branch(file, s, name):
                continue
            if found is None or s.lineno > found.lineno:
                found = s
    return found


def _in_other_branch(file: File, s: ast.Assign, node: ast.Name) -> bool:
    """if seed: data = data.map(f) else: data = data.shuffle(n): one of the two runs"""
    for i in file.places[s].ifs:
        if not isinstance(i, ast.If):
            continue
        sides = [{x for b in body for x in walk(b)} for body in (i.body, i.orelse)]
        if any(s in a and node in b for a, b in (sides, sides[::-1])):
            return True
    return False


CHECKS = (data_buffers,)
