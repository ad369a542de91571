"""Data that is loaded whole."""

import ast
import re

from . import evidence, rules
from .flow import container_of, in_order, resets, scopes, variables
from .names import FUNCTIONS, constant, key, keyword, method, own, pairs, targets, walk, walk_here
from .tensorflow import LOADING


def _loaders(file):
    """Variables that are DataLoaders, by what they are made from."""
    return {
        key(t)
        for n in file.nodes
        if isinstance(n, ast.Assign)
        and isinstance(n.value, ast.Call)
        and (file.callee(n.value) or "").split(".")[-1] == "DataLoader"
        for t in n.targets
        if key(t)
    }


def _moves_to_gpu(node):
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr == "cuda":
        return True
    return (
        node.func.attr == "to"
        and bool(node.args)
        and (
            str(constant(node.args[0], "")).startswith("cuda")
            or "device" in (key(node.args[0]) or "").lower()
        )
    )


def whole_dataset(file):
    """list(loader), [x.to(device) for x in loader], TensorDataset(x.cuda())"""
    loaders = _loaders(file)
    streams = loaders | _hub_datasets(file)
    # what a statement keeps: not an assertion about it, not a call that throws it away
    kept = {
        n
        for s in file.statements
        if isinstance(s, (ast.Assign, ast.AnnAssign, ast.Return)) and s.value is not None
        for n in walk_here(s.value)
    }
    # list(loader)[3]: the rest of the list is gone at once
    picked = {n.value for n in file.nodes if isinstance(n, ast.Subscript)}
    for node in file.nodes:
        if isinstance(node, ast.Call):
            name = (file.callee(node) or "").split(".")[-1]
            if (
                isinstance(node.func, ast.Name)
                and node.func.id == "list"
                and len(node.args) == 1
                and key(node.args[0]) in streams
                and node in kept
                and node not in picked
                and not _set_to_another(file, node)
            ):
                yield rules.finding(
                    "dataset-in-a-list",
                    node,
                    "`%s` is read to its end into a list: the whole dataset stays in memory"
                    % key(node.args[0]),
                    hint=key(node.args[0]) in _test_splits(file) and not trains(file),
                )
            elif name == "TensorDataset" and any(_moves_to_gpu(a) for a in node.args):
                yield rules.finding(
                    "dataset-on-gpu",
                    node,
                    "the whole dataset is moved to the GPU, where it takes the room of activations",
                    # Token ids and labels are small beside what the model makes of them.
                    hint=all(
                        evidence.SMALL.search(key(a.func.value) or "")
                        for a in node.args
                        if _moves_to_gpu(a) and isinstance(a.func, ast.Attribute)
                    ),
                )
        elif isinstance(node, ast.ListComp) and len(node.generators) == 1:
            over = _iterated(node.generators[0].iter)
            if any(_loads_to_gpu(file, n) for n in walk_here(node.elt)):
                yield rules.finding(
                    "dataset-on-gpu",
                    node,
                    "every file is loaded to the GPU and kept in a list",
                )
                continue
            if key(over) not in streams:
                continue
            batch = variables(node.generators[0].target)
            if any(_moves_to_gpu(e) and _is_batch(e, batch) for e in _parts(node.elt)):
                yield rules.finding(
                    "dataset-on-gpu",
                    node,
                    "every batch of `%s` is moved to the GPU and kept in a list" % key(over),
                )
            elif _keeps_batch(node):
                yield rules.finding(
                    "dataset-in-a-list",
                    node,
                    "every batch of `%s` is kept in a list: the whole dataset stays in memory"
                    % key(over),
                    hint=key(over) not in loaders or not trains(file),
                )


def _set_to_another(file, call) -> bool:
    """ds = split_of(name) in this function, and ds = load_dataset(...) in another"""
    name = key(call.args[0])
    here = [s for s in file.statements if any(n is call for n in own(s))]
    function = file.places[here[0]].function if here else None
    values = [
        s.value
        for s in file.statements
        if isinstance(s, ast.Assign)
        and file.places[s].function is function
        and any(key(t) == name for t in targets(s))
    ]
    return bool(values) and not any(
        isinstance(v, ast.Call)
        and (file.callee(v) or "").split(".")[-1] in ("load_dataset", "DataLoader")
        for v in values
    )


def _test_splits(file):
    """Variables that are splits for tests, wherever they are set: small beside the others."""
    splits = {}
    for n in file.nodes:
        if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call):
            if (file.callee(n.value) or "") == "datasets.load_dataset":
                split = str(constant(keyword(n.value, "split"), ""))
                for t in n.targets:
                    splits.setdefault(key(t), []).append(split)
    return {k for k, v in splits.items() if all(re.search("test|valid|dev", s) for s in v)}


def trains(file) -> bool:
    return any(
        isinstance(n, ast.Call)
        and (method(n) in ("fit", "backward", "step", "train") or "Trainer" in method(n))
        for n in file.nodes
    )


def _parts(element):
    """(x.to(device), y) -> x.to(device), y"""
    return element.elts if isinstance(element, (ast.Tuple, ast.List)) else [element]


def lists_on_card(file):
    """graphs = [g.to(device) for g in graphs]; DataLoader(graphs[:cut])"""
    if not any(isinstance(n, ast.Call) and method(n) == "DataLoader" for n in file.nodes):
        return
    given = {
        key(a.value) if isinstance(a, ast.Subscript) and key(a) is None else key(a)
        for n in file.nodes
        if isinstance(n, ast.Call)
        and method(n) in ("DataLoader", "random_split", "Subset", "TensorDataset", "ConcatDataset")
        for a in n.args[:1] + [k.value for k in n.keywords if k.arg == "dataset"]
    } - {None}
    for s in file.statements:
        if not isinstance(s, ast.Assign) or not isinstance(s.value, ast.ListComp):
            continue
        name, made = key(s.targets[0]), s.value
        moved = made.elt.elts if isinstance(made.elt, (ast.Tuple, ast.List)) else [made.elt]
        if name in given and any(_moves_to_gpu(m) for m in moved):
            yield rules.finding(
                "dataset-on-gpu",
                s,
                "every sample is moved to the GPU before the loader is made: the whole dataset "
                "stays there",
            )


# Names of things that come in pieces: files, days, shards.
_PIECES = re.compile(r"path|file|chunk|shard|part|csv|parquet|reader|glob|listdir", re.I)


def frames_grown(file):
    """frame = pd.concat([frame, day]) in a loop over files"""
    if "pandas" not in file.modules:
        return
    for s in file.statements:
        place = file.places[s]
        if not place.loops or not isinstance(s, ast.Assign) or not isinstance(s.value, ast.Call):
            continue
        name, call = key(s.targets[0]), s.value
        joins = (file.callee(call) or "") == "pandas.concat" and call.args
        appends = (
            method(call) == "append"
            and isinstance(call.func, ast.Attribute)
            and key(call.func.value) == name
        )
        if not name or not (joins or appends):
            continue
        parts = (
            call.args[0].elts if joins and isinstance(call.args[0], (ast.List, ast.Tuple)) else []
        )
        if joins and not any(key(p) == name for p in parts):
            continue
        loop = place.loops[-1]
        if resets(loop, name, None) and any(
            x is not s and any(key(g) == name for g in targets(x)) for x in in_order(loop.body)
        ):
            continue
        if not _over_pieces(file, loop) or evidence.few_rounds(loop, file):
            continue
        yield rules.finding(
            "frame-grown-in-loop",
            s,
            "`%s` is copied whole in every round to add a piece: at the end the data exists twice"
            % name,
            hint=not _reads_pieces(file, loop)
            or _small_tables(s, loop)
            or not _large_pieces(file, loop),
        )


_NOTES = re.compile(
    r"bbox|bounding|annot|label|meta|(^|_)folds?($|_)|score|result|metric|stat(s|istics)?(_|$)|summary|"
    r"history|class|categor|info",
    re.I,
)


def _small_tables(s, loop) -> bool:
    """Tables about the data: boxes, labels, scores. A row of them is some numbers."""
    words = [
        n.id if isinstance(n, ast.Name) else n.attr if isinstance(n, ast.Attribute) else n.value
        for node in (s, *(x for x in in_order(loop.body) if isinstance(x, ast.Assign)))
        for n in own(node)
        if isinstance(n, (ast.Name, ast.Attribute))
        or isinstance(n, ast.Constant)
        and isinstance(n.value, str)
    ]
    return any(_NOTES.search(w) for w in words)


def _large_pieces(file, loop) -> bool:
    """Formats that are for much data, and reading by chunks"""
    return any(
        isinstance(n, ast.Call)
        and (method(n) in ("read_parquet", "read_feather", "read_hdf", "ParquetFile", "read_table"))
        or isinstance(n, ast.keyword)
        and n.arg == "chunksize"
        or isinstance(n, (ast.Name, ast.Attribute))
        and bool(re.search(r"chunk|shard", key(n) or "", re.I))
        for n in walk(loop)
    )


def _reads_pieces(file, loop) -> bool:
    """What is added is read from a file, or comes in chunks: not rows that are made up here."""
    called = [
        file.callee(n) or "" for s in in_order(loop.body) for n in own(s) if isinstance(n, ast.Call)
    ]
    called += [
        file.callee(n) or ""
        for name in called
        if name in file.plain_functions
        for n in walk(file.plain_functions[name])
        if isinstance(n, ast.Call)
    ]
    return any(name in READ_WHOLE for name in called) or any(
        re.search(r"chunk|shard|reader|part|frame|day|csv|parquet", key(n) or "", re.I)
        for n in [*walk_here(loop.iter), *targets(loop)]
    )


def _over_pieces(file, loop) -> bool:
    """A loop over files or chunks, or one that reads a file in every round."""
    if not isinstance(loop, ast.For):
        return False
    names = [key(n) or "" for n in walk_here(loop.iter)] + [key(t) or "" for t in targets(loop)]
    names += [method(n) for n in walk_here(loop.iter) if isinstance(n, ast.Call)]
    return any(_PIECES.search(n) for n in names) or any(
        isinstance(n, ast.Call) and (file.callee(n) or "") in READ_WHOLE
        for s in in_order(loop.body)
        for n in own(s)
    )


def _hub_datasets(file):
    """Variables that are one split of a Hugging Face dataset: mapped from disk until listed."""
    return {
        key(t)
        for n in file.nodes
        if isinstance(n, ast.Assign)
        and isinstance(n.value, ast.Call)
        and (file.callee(n.value) or "") == "datasets.load_dataset"
        and isinstance(constant(keyword(n.value, "split")), str)
        and "[" not in constant(keyword(n.value, "split"))
        for t in n.targets
        if key(t)
    }


_DECODES = (
    "PIL.Image.open",
    "cv2.imread",
    "imageio.imread",
    "skimage.io.imread",
    "matplotlib.pyplot.imread",
    "torchvision.io.read_image",
    "torchaudio.load",
    "librosa.load",
    "soundfile.read",
    "numpy.load",
    "nibabel.load",
)


def samples_read_whole(file):
    """A Dataset whose __init__ decodes every file into a list. Where the file makes no loader, what
    it is used for, and on how many samples, is decided elsewhere.
    """
    loaded = any(isinstance(n, ast.Call) and method(n).endswith("Loader") for n in file.nodes)
    for c in file.classes.values():
        if not any((file.dotted(b) or "").split(".")[-1] == "Dataset" for b in c.bases):
            continue
        for f in c.body:
            if not isinstance(f, FUNCTIONS) or f.name != "__init__":
                continue
            text = _whole_text(file, f)
            if text is not None:
                yield rules.finding(
                    "dataset-read-whole",
                    text[0],
                    "the whole file is read into `%s`, one Python string a line: several times its "
                    "size in host memory, and each worker copies what it touches" % text[1],
                    hint=not loaded,
                )
                continue
            hit = _decodes_all(file, f)
            if hit is not None:
                yield rules.finding(
                    "dataset-read-whole",
                    hit[0],
                    "every file is decoded into `%s` before the first batch: the whole dataset "
                    "stays in host memory" % hit[1],
                    hint=not loaded
                    or _asked_for(file, hit[0])
                    or bool(_MASKS.search(hit[1]))
                    or any(evidence.few_rounds(x, file) for x in _rounds_of(file, hit[0])),
                )


def _rounds_of(file, s) -> list:
    """The loops around a statement, and the comprehension in it."""
    comprehensions = [n for n in walk_here(s) if isinstance(n, (ast.ListComp, ast.DictComp))]
    return [*file.places[s].loops, *comprehensions]


# One byte a pixel, or less: small beside the pictures they belong to.
_MASKS = re.compile(r"mask|label|annot|box|target|palette", re.I)
_PRELOADS = re.compile(r"pre_?load|cach|in_?memory|to_?ram|load_?(all|into)|keep", re.I)


def _asked_for(file, s) -> bool:
    """if self.preload: the user chose to hold it all"""
    place = file.places.get(s)
    return place is not None and any(
        _PRELOADS.search(key(n) or "")
        for i in place.ifs
        if isinstance(i, ast.If)
        for n in walk(i.test)
        if isinstance(n, (ast.Name, ast.Attribute))
    )


# Names of what a list of files or of classes is called: a line each, and no sample in it.
_LISTING = re.compile(
    r"path|file|name|image|img|class|categor|label|vocab|(^|_|\.)(ids?|keys?|index|split|list)$",
    re.I,
)


def _opens_files(file, f) -> bool:
    """Does the class open what the lines name? Then they are paths, not samples."""
    around = file.places[f].klass
    return around is not None and any(
        isinstance(n, ast.Call) and (file.callee(n) or "") in _DECODES for n in walk(around)
    )


def _whole_text(file, f):
    """(statement, attribute) of self.lines = f.read().splitlines(), f.readlines(), list(f)"""
    opened = {
        key(item.optional_vars)
        for s in in_order(f.body)
        if isinstance(s, ast.With)
        for item in s.items
        if item.optional_vars is not None
        and isinstance(item.context_expr, ast.Call)
        and method(item.context_expr) == "open"
    }
    for s in in_order(f.body):
        if not isinstance(s, ast.Assign) or not isinstance(s.value, ast.Call):
            continue
        name, call = key(s.targets[0]) or "", s.value
        if not name.startswith("self.") or _LISTING.search(name) or _opens_files(file, f):
            continue
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        reads = isinstance(owner, ast.Call) and method(owner) in ("read", "read_text")
        if method(call) in ("splitlines", "split") and reads:
            return s, name
        if method(call) == "readlines" or (
            method(call) == "list" and call.args and key(call.args[0]) in opened
        ):
            return s, name
    return None


def _decodes_all(file, f):
    """(statement, attribute) of self.x = [read(p) for p in paths] and self.x.append(read(p))"""
    read = set()  # variables that hold a decoded sample
    for s in in_order(f.body):
        if isinstance(s, ast.Assign):
            name = key(s.targets[0]) or ""
            loops = file.places[s].loops
            if loops and _decodes(file, s.value, read):
                read.update(k for k in map(key, targets(s)) if k)
            if name.startswith("self.") and isinstance(s.value, (ast.ListComp, ast.DictComp)):
                made = s.value.value if isinstance(s.value, ast.DictComp) else s.value.elt
                if _decodes(file, made, read):
                    return s, name
        if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call) and file.places[s].loops:
            call = s.value
            name = key(call.func.value) if isinstance(call.func, ast.Attribute) else None
            if method(call) == "append" and name and name.startswith("self.") and call.args:
                if _decodes(file, call.args[0], read):
                    return s, name
    return None


_SUMMARY = frozenset("len size shape mean std sum max min item".split())


def _decodes(file, value, read):
    if any(
        isinstance(n, ast.Attribute) and n.attr in _SUMMARY for n in walk_here(value)
    ):  # Image.open(p).size
        return False
    return any(
        isinstance(n, ast.Call)
        and (file.callee(n) or "") in _DECODES
        and keyword(n, "mmap_mode") is None
        or isinstance(n, ast.Name)
        and n.id in read
        for n in walk_here(value)
    )


def _loads_to_gpu(file, node) -> bool:
    """torch.load(f).cuda(), torch.from_numpy(np.load(f)).to(device)"""
    return _moves_to_gpu(node) and any(
        isinstance(n, ast.Call) and (file.callee(n) or "") in _FILES for n in walk_here(node)
    )


_FILES = ("torch.load", "numpy.load", "torchaudio.load", "torchvision.io.read_image")


def _iterated(over):
    if isinstance(over, ast.Call) and method(over) in ("enumerate", "tqdm") and over.args:
        return over.args[0]
    return over


def batches_gathered(file):
    """for x in loader: kept.append(x.to(device))"""
    loaders = _loaders(file)
    for loop in [s for s in file.statements if isinstance(s, ast.For)]:
        if key(_iterated(loop.iter)) not in loaders:
            continue
        batch = set().union(*[variables(t) for t in targets(loop)])
        moved = set()
        for s in in_order(loop.body):
            if isinstance(s, ast.Assign) and _is_batch(s.value, batch | moved):
                names = {key(t) for t in targets(s)} - {None}
                if _moves_to_gpu(s.value) or key(s.value) in moved:
                    moved |= names
                batch |= names
            if not isinstance(s, ast.Expr) or not isinstance(s.value, ast.Call):
                continue
            call = s.value
            if (
                method(call) != "append"
                or not call.args
                or not isinstance(call.func, ast.Attribute)
            ):
                continue
            name = key(call.func.value)
            values = call.args[0].elts if isinstance(call.args[0], ast.Tuple) else call.args
            if name is None or resets(loop, name, None):
                continue
            for v in values:
                if evidence.SMALL.search(name) or evidence.SMALL.search(key(v) or ""):
                    continue  # a number a sample
                if _is_batch(v, batch | moved) and (_moves_to_gpu(v) or key(v) in moved):
                    yield rules.finding(
                        "dataset-on-gpu",
                        s,
                        "every batch of `%s` is moved to the GPU and kept in `%s`"
                        % (key(_iterated(loop.iter)), name),
                    )
                    break


def _is_batch(value, names) -> bool:
    """x, x.to(device), x[0], x.float().cuda(): the data itself, not what a model makes of it."""
    while True:
        if key(value) in names:
            return True
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            if value.func.attr not in ("to", "cuda", "float", "half", "long", "view", "clone"):
                return False
            value = value.func.value
        elif isinstance(value, ast.Subscript):
            value = value.value
        else:
            return False


READ_WHOLE = LOADING + ("torch.load", "pandas.read_json", "pandas.read_excel", "pandas.read_table")


def files_on_gpu(file):
    """torch.tensor(pd.read_csv(...).values).to(device), used in pieces later"""
    if "torch" not in file.modules:
        return
    loading = _loading_functions(file)
    reading = _reading_functions(file)
    arrays = _reading_functions(file, tensors_only=False)
    for scope in scopes(file):
        whole = {}  # variable -> the file it came from
        moved = {}  # variable -> the statement that moved it
        for s in scope.statements:
            place = file.places.get(s)
            if isinstance(s, ast.With):  # with h5py.File(path) as f
                for item in s.items:
                    origin = _read_from(file, item.context_expr, whole)
                    if origin and item.optional_vars is not None and key(item.optional_vars):
                        whole[key(item.optional_vars)] = origin
            if not isinstance(s, ast.Assign) or place is None or place.loops:
                continue
            called = loading.get(key(s.value.func)) if isinstance(s.value, ast.Call) else None
            if called:  # xs, ys = load(path, device)
                for t in targets(s):
                    if key(t):
                        moved[key(t)] = called
            read = reading.get(key(s.value.func)) if isinstance(s.value, ast.Call) else None
            if read:  # xs, ys = load(path), on the host
                whole.update((key(t), read) for t in targets(s) if key(t))
                continue
            for target, value in pairs(s):
                k = key(target)
                origin = _read_from(file, value, whole) or _read_by(value, arrays)
                if k and origin:
                    whole[k] = origin
                    if any(_moves_to_gpu(n) for n in walk_here(value)) or _made_on_gpu(file, value):
                        moved[k] = (s, origin)
                elif k:
                    whole.pop(k, None)
                if k and key(value) in moved:
                    moved[k] = moved[key(value)]
                elif k and isinstance(value, ast.Subscript) and key(value.value) in moved:
                    moved[k] = moved[key(value.value)]  # images = data["images"]
                elif k and _read_to_gpu(file, value):
                    moved[k] = (s, "`torch.load`")
        told = set()
        for name, (s, origin) in moved.items():
            if evidence.SMALL.search(name) or origin in told:
                continue  # one finding for all parts of a file
            if _used_in_pieces(file, scope, name):
                told.add(origin)
                yield rules.finding(
                    "dataset-on-gpu",
                    s,
                    "everything read by %s is moved to the GPU at once, and the loop uses a piece "
                    "at a time" % origin,
                )


def _read_to_gpu(file, value) -> bool:
    """torch.load(path, map_location=device): tensors of a file, if they are used as such"""
    return (
        isinstance(value, ast.Call)
        and (file.callee(value) or "") == "torch.load"
        and _is_gpu(keyword(value, "map_location"))
    )


def _loading_functions(file):
    """Functions of this file that read a whole file and return it on the card: name -> (the
    statement that moves it, what read it).
    """
    found = {}
    for name, function in file.plain_functions.items():
        whole, moved = {}, {}
        for s in in_order(function.body):
            if isinstance(s, ast.Assign):
                for target, value in pairs(s):
                    origin = _read_from(file, value, whole)
                    if key(target) and origin:
                        whole[key(target)] = origin
                        if any(_moves_to_gpu(n) for n in walk_here(value)):
                            moved[key(target)] = (s, origin)
            if isinstance(s, ast.Return) and s.value is not None:
                origin = _read_from(file, s.value, whole)
                if origin and any(_moves_to_gpu(n) for n in walk_here(s.value)):
                    found[name] = (s, origin)
                for k in variables(s.value) & set(moved):
                    found[name] = moved[k]
    return found


def _read_by(value, arrays):
    """torch.from_numpy(read_table(path)), where read_table is of this file"""
    for n in walk_here(value):
        if isinstance(n, ast.Call) and key(n.func) in arrays:
            return arrays[key(n.func)]
    return None


def _reading_functions(file, tensors_only=True):
    """Functions of this file that read a whole file and return tensors of it on the host, or arrays:
    name -> what read it.
    """
    found = {}
    for name, function in file.plain_functions.items():
        whole, tensors = {}, set()
        for s in in_order(function.body):
            if isinstance(s, ast.Assign):
                for target, value in pairs(s):
                    origin = _read_from(file, value, whole)
                    if key(target) and origin:
                        whole[key(target)] = origin
                        if _is_tensor(file, value) or variables(value) & tensors:
                            tensors.add(key(target))
            if isinstance(s, ast.Return) and s.value is not None:
                origin = _read_from(file, s.value, whole)
                tensor = _is_tensor(file, s.value) or variables(s.value) & tensors
                if origin and (tensor or not tensors_only and not _small_part(s.value)):
                    found[name] = origin
    return found


def _small_part(value) -> bool:
    """return frame["label"].unique(), len(frame), frame.columns, (rows, names)"""
    asked = {n.attr for n in walk_here(value) if isinstance(n, ast.Attribute)}
    return (
        bool(asked & _SUMMARY or asked & {"unique", "columns", "index", "keys", "item", "iloc"})
        or isinstance(value, (ast.Tuple, ast.Dict, ast.List))
        or isinstance(value, ast.Call)
        and method(value) in ("len", "int", "float", "str")
    )


def _is_tensor(file, value):
    return any(
        isinstance(n, ast.Call)
        and (file.callee(n) or "").split(".")[-1]
        in ("tensor", "from_numpy", "as_tensor", "FloatTensor", "Tensor")
        for n in walk_here(value)
    )


def _read_from(file, value, whole):
    """The call that read the file this value is made from, or None."""
    for n in walk_here(value):
        if isinstance(n, ast.Call):
            name = file.callee(n) or ""
            if name in READ_WHOLE and not _is_model(n, name):
                return "`%s`" % key(n.func)
        if isinstance(n, ast.Name) and n.id in whole and isinstance(n.ctx, ast.Load):
            return whole[n.id]
    return None


def _is_model(call, name):
    """torch.load of weights is not data."""
    text = " ".join(str(constant(a, "")) + " " + (key(a) or "") for a in call.args)
    return name == "torch.load" and not re.search(
        r"data|feature|embed|train|sample|input|image", text
    )


def _made_on_gpu(file, value):
    """torch.tensor(x, device=device)"""
    return any(
        isinstance(n, ast.Call)
        and (file.callee(n) or "") in ("torch.tensor", "torch.as_tensor")
        and _is_gpu(keyword(n, "device"))
        for n in walk_here(value)
    )


def _is_gpu(node):
    if node is None:
        return False
    return str(constant(node, "")).startswith("cuda") or "device" in (key(node) or "").lower()


def _used_in_pieces(file, scope, name):
    """TensorDataset(x, y), x[i : i + batch] or x[indices] in a loop that trains"""
    for s in scope.statements:
        if isinstance(s, ast.For) and scope.has_backward(s):  # for x in data.split(64)
            over = s.iter.args if isinstance(s.iter, ast.Call) else [s.iter]
            if isinstance(s.iter, ast.Call) and isinstance(s.iter.func, ast.Attribute):
                if method(s.iter) in ("split", "chunk", "unbind"):
                    over = [*over, s.iter.func.value]
            if any(key(part) == name for part in over):
                return True
        for n in own(s):
            if isinstance(n, ast.Call) and (file.callee(n) or "").split(".")[-1] == "TensorDataset":
                if any(key(a) == name for a in n.args) and not _all_in_one(file):
                    return True
            if isinstance(n, ast.Subscript) and key(n.value) == name:
                loops = file.places[s].loops
                if loops and isinstance(n.ctx, ast.Load) and not isinstance(n.slice, ast.Constant):
                    if any(scope.has_backward(loop) for loop in loops):
                        return True
    return False


def _all_in_one(file) -> bool:
    """DataLoader(dataset, batch_size=len(points)): one batch of all"""
    made = {
        key(t)
        for s in file.statements
        if isinstance(s, ast.Assign)
        and isinstance(s.value, ast.Call)
        and method(s.value) == "TensorDataset"
        for t in targets(s)
    }
    sizes = [
        keyword(n, "batch_size")
        for n in file.nodes
        if isinstance(n, ast.Call)
        and method(n) == "DataLoader"
        and any(
            key(a) in made or isinstance(a, ast.Call) and method(a) == "TensorDataset"
            for a in n.args[:1]
        )
    ]
    return bool(sizes) and all(isinstance(s, ast.Call) and key(s.func) == "len" for s in sizes)


def card_in_workers(file):
    """x.cuda() in __getitem__ or collate_fn, with workers"""
    loads = [
        n
        for n in file.nodes
        if isinstance(n, ast.Call) and (file.callee(n) or "").split(".")[-1] == "DataLoader"
    ]
    parallel = [n for n in loads if constant(keyword(n, "num_workers"), 1) not in (0, None)]
    parallel = [n for n in parallel if keyword(n, "num_workers") is not None]
    if not parallel:
        return
    functions = [
        f
        for c in file.classes.values()
        if any((file.dotted(b) or "").split(".")[-1].endswith("Dataset") for b in c.bases)
        for f in c.body
        if isinstance(f, FUNCTIONS) and f.name == "__getitem__"
    ]
    for n in parallel:
        collate = file.plain_functions.get(key(keyword(n, "collate_fn")) or "")
        if collate is not None:
            functions.append(collate)
    for f in functions:
        for n in walk_here(f):
            if _certainly_gpu(n):
                yield rules.finding(
                    "card-in-workers",
                    n,
                    "`%s` runs in the workers: each worker process gets a CUDA context of its own, "
                    "some hundred MiB of the card" % f.name,
                )
                break


def _certainly_gpu(node):
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr == "cuda":
        return True
    return (
        node.func.attr == "to"
        and bool(node.args)
        and str(constant(node.args[0], "")).startswith("cuda")
    )


def _keeps_batch(comprehension):
    """[b for b in loader], [b[0] for b in loader]: the data itself, not a number made of it."""
    element = comprehension.elt
    while isinstance(element, ast.Subscript):
        element = element.value
    names = variables(comprehension.generators[0].target)
    if isinstance(element, (ast.Tuple, ast.List)):
        return any(key(e) in names for e in element.elts)
    return key(element) in names


def lists_and_workers(file):
    """A Dataset that keeps Python objects, read by many workers"""
    keeping = {
        name: attribute
        for name, c in file.classes.items()
        for attribute in [_python_list(file, c)]
        if attribute
    }
    if not keeping:
        return
    made = {
        key(t): (file.callee(n.value) or "").split(".")[-1]
        for n in file.nodes
        if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call)
        for t in n.targets
        if key(t)
    }
    for call in file.nodes:
        if (
            not isinstance(call, ast.Call)
            or (file.callee(call) or "").split(".")[-1] != "DataLoader"
            or not call.args
        ):
            continue
        workers = _asked_workers(file, keyword(call, "num_workers"))
        first = call.args[0]
        name = (
            (file.callee(first) or "").split(".")[-1]
            if isinstance(first, ast.Call)
            else made.get(key(first))
        )
        if name in keeping and isinstance(workers, int) and workers >= 4:
            gathered = _gathering(file, file.classes[name], keeping[name])
            yield rules.finding(
                "workers-copy-python-list",
                call,
                "`%s.%s` is a Python list: reading it changes reference counts, so each of the %d workers copies its pages over time"
                % (name, keeping[name], workers),
                hint=_of_paths(gathered)
                or _describes(file.classes[name], keeping[name])
                or _only_looked_at(file, call),
            )
            if (
                gathered is not None
                and not _only_looked_at(file, call)
                and not _of_paths(gathered)
                and not _describes(file.classes[name], keeping[name])
            ):
                yield rules.finding(
                    "list-copied-here",
                    gathered,
                    "the objects gathered here are what each worker copies (line %d)" % call.lineno,
                )


def _only_looked_at(file, call) -> bool:
    """x, y = next(iter(loader)), and no loop over it"""
    names = {
        key(t)
        for s in file.statements
        if isinstance(s, ast.Assign) and s.value is call
        for t in targets(s)
    } - {None}
    uses = [
        n
        for n in file.nodes
        if isinstance(n, ast.Name) and n.id in names and isinstance(n.ctx, ast.Load)
    ]
    looked = [
        n
        for n in file.nodes
        if isinstance(n, ast.Call) and method(n) in ("iter", "len", "print")
        for a in n.args
        if key(a) in names
    ]
    return bool(uses) and len(uses) == len(looked)


def _describes(c, name: str) -> bool:
    """self.metadata = json.load(f), self.categories: what is said about the samples, not the
    samples, which __getitem__ takes one by one.
    """
    if re.search(r"meta|config|info$|stats?$|class|split|vocab|mapping|^cat($|s$|eg)", name, re.I):
        return True
    taken = {
        (key(n.value) or "").split(".")[-1]
        for f in c.body
        if isinstance(f, FUNCTIONS) and f.name not in ("__init__", "__len__")
        for n in walk(f)
        if isinstance(n, ast.Subscript)
    }
    return bool(taken) and name not in taken


_TEXTS = re.compile(r"line|text|sent|corpus|doc|caption|story|token|word", re.I)


def _of_paths(s) -> bool:
    """self.masks = [p.replace("img", "mask") for p in paths]: one string a file of the folder, of
    which there may be a hundred
    """
    made = getattr(s, "value", None)
    name = key(s.targets[0]) or "" if isinstance(s, ast.Assign) else ""
    if isinstance(s, ast.Expr) and isinstance(made, ast.Call):  # self.paths.append(path)
        name = container_of(made.func.value) or "" if isinstance(made.func, ast.Attribute) else ""
        given = made.args[0] if made.args else made
        called = method(given) if isinstance(given, ast.Call) else ""
        if called in ("join", "Path") or re.search(r"path|file", key(given) or "", re.I):
            return True
        parts = given.elts if isinstance(given, ast.Tuple) else []
        if parts and all(key(p) for p in parts):  # (name of a file, label)
            if any(re.search(r"path|file|fname", key(p), re.I) for p in parts):
                return True
        if called in ("strip", "rstrip") and not _TEXTS.search(name):
            return True  # a name for each sample
    if evidence.SMALL.search(name.split(".")[-1]) and not isinstance(made, ast.Dict):
        return True  # labels, ids: a number each
    if re.search(r"(path|file|img|image|mask)s?(_?(path|file|name|list))*s?$", name, re.I):
        return isinstance(made, (ast.ListComp, ast.Call))
    if not isinstance(made, ast.ListComp):
        return False
    spelt = isinstance(made.elt, (ast.JoinedStr, ast.BinOp)) or (
        isinstance(made.elt, ast.Call) and method(made.elt) in ("replace", "join", "str", "format")
    )
    over = made.generators[0].iter
    names = [key(n) or "" for n in walk(over) if isinstance(n, (ast.Name, ast.Attribute))]
    return spelt and any(re.search(r"path|file|glob|listdir|scandir", n) for n in names)


def _asked_workers(file, value):
    """The number, or the default of the command-line argument that gives it."""
    if isinstance(value, ast.Attribute):
        for n in file.nodes:
            if isinstance(n, ast.Call) and method(n) == "add_argument":
                names = [str(constant(a, "")).lstrip("-").replace("-", "_") for a in n.args]
                if value.attr in names:
                    return constant(keyword(n, "default"), 0)
    return constant(value, 0)


def _gathering(file, c, attribute):
    """The statement in __init__ that puts objects into self.attribute."""
    init = next((f for f in c.body if isinstance(f, FUNCTIONS) and f.name == "__init__"), None)
    for s in in_order(init.body) if init is not None else ():
        if isinstance(s, ast.Assign) and key(s.targets[0]) == "self." + attribute:
            if isinstance(s.value, (ast.ListComp, ast.Call)):
                return s
        for n in own(s):
            if (
                isinstance(n, ast.Call)
                and method(n) in ("append", "extend")
                and isinstance(n.func, ast.Attribute)
                and key(n.func.value) == "self." + attribute
            ):
                return s
    return None


def _is_array(file, arguments, arrays=frozenset()) -> bool:
    """self.xs.append(np.load(path)): few arrays, whose pages reading does not change"""
    return bool(arguments) and any(
        isinstance(n, ast.Call)
        and (file.callee(n) or "").startswith(("numpy.", "torch."))
        or isinstance(n, ast.Name)
        and n.id in arrays
        for n in walk_here(arguments[0])
    )


def _arrays(file, f):
    """Variables of a function that hold arrays, or parts of them."""
    found = set()
    for s in in_order(f.body):
        if isinstance(s, ast.Assign) and _is_array(file, [s.value], found):
            found.update(n.id for t in s.targets for n in walk(t) if isinstance(n, ast.Name))
    return found


_MODES = re.compile(r"(^|_|\.)(mode|split|phase|subset|stage|(is_)?(train|test|val)\w*)$", re.I)


def _of_one_mode(file, s) -> bool:
    """if mode == "test": self.rows.append(...): which dataset is meant is not known"""
    return any(
        _MODES.search(key(n) or "")
        for i in file.places[s].ifs
        if isinstance(i, ast.If)
        for n in walk_here(i.test)
        if isinstance(n, (ast.Name, ast.Attribute))
    )


def _python_list(file, c):
    """The attribute of a Dataset in which __init__ gathers Python objects one by one."""
    if not any(
        (file.dotted(b) or "").split(".")[-1] in ("Dataset", "IterableDataset") for b in c.bases
    ):
        return None
    for f in c.body:
        if not isinstance(f, FUNCTIONS) or f.name != "__init__":
            continue
        arrays = _arrays(file, f)
        joined = {
            key(t)
            for s in in_order(f.body)
            if isinstance(s, ast.Assign) and _is_array(file, [s.value])
            for t in targets(s)
        }  # self.images = np.vstack(self.images)
        for node in [
            n for s in in_order(f.body) if not _of_one_mode(file, s) for n in (s, *own(s))
        ]:
            if (
                isinstance(node, ast.Call)
                and method(node) in ("append", "extend")
                and isinstance(node.func, ast.Attribute)
            ):
                name = key(node.func.value) or ""
                if name in joined:
                    continue
                if name.startswith("self.") and not _is_array(file, node.args, arrays):
                    return name.split(".", 1)[1]
            if isinstance(node, ast.Assign) and (
                isinstance(node.value, ast.ListComp)
                and not _is_array(file, [node.value.elt], arrays)
                or isinstance(node.value, ast.Call)
                and (
                    method(node.value) in ("tolist", "readlines", "splitlines")
                    or (file.callee(node.value) or "") in ("json.load", "json.loads")
                )
            ):
                name = key(node.targets[0]) or ""
                if name.startswith("self."):
                    return name.split(".", 1)[1]
    return None
