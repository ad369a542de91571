"""`memroom.Stream("data/*.parquet", batch_size=1024, budget="256MiB")`: batches of data that is
larger than memory, from a server that keeps within a budget of bytes.
"""

import copy as copy_module
import os
import time
import warnings
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional

from .wire import FeedError, Link, Server

__all__ = ["FeedError", "Stream"]


WELL_MIXED = 0.95  # of the classes that a batch of a full shuffle holds
TRANSPORTS = ("memfd", "copy")


class Stream:
    """Batches of files as dicts of NumPy arrays. Each iteration is a pass over one epoch; the next
    one reads the next epoch, shuffled anew, also where the last was left in the middle.

    sources     a path, a folder, a glob (** for any folders, {000..127} for numbers), an http:// or
                s3:// address, or a list of them
    batch_size  rows of a batch
    budget      memory of the server for everything, such as "256MiB"
    shuffle     mix the rows; the order depends on seed, epoch, batch position and window alone
    columns     columns to read, in this order; all otherwise
    rank, world this process's share: batches rank, rank + world, ...; RANK and WORLD_SIZE of the
                environment otherwise
    window      bytes of rows that are mixed with each other ("32MiB"); changes the order; by the
                budget otherwise
    drop_last   leave out a last batch that is not full, and what does not make a whole step of all
                ranks
    even_ranks  all ranks get the same number of batches: with drop_last the last ones that do not
                make a whole step are left out, otherwise the first ones of the epoch come again.
                False: every batch once, some ranks get one more
    copy        True: arrays are the caller's. False: arrays are views that the next batch
                overwrites; quicker, for callers that keep nothing
    prefetch    batches that the server prepares ahead for this consumer; where None, as many as it
                takes within the budget
    types       types of CSV and JSON columns by name: {"zip": "str", "x": "float32"}
    skip_bad    skip and count rows that cannot be read, instead of raising FeedError
    """

    def __init__(
        self,
        sources: Any,
        batch_size: int = 1024,
        budget: Any = "256MiB",
        shuffle: bool = False,
        seed: int = 0,
        columns: Optional[List[str]] = None,
        rank: Optional[int] = None,
        world: Optional[int] = None,
        window: Any = None,
        drop_last: bool = False,
        copy: bool = True,
        prefetch: Optional[int] = None,
        format: Optional[str] = None,
        types: Optional[Dict[str, str]] = None,
        delimiter: Optional[str] = None,
        header: bool = True,
        skip_bad: bool = False,
        transport: str = "memfd",
        server: Optional[str] = None,
        even_ranks: bool = True,
    ) -> None:
        if int(batch_size) < 1:
            raise ValueError("batch_size must be at least 1, not %r" % (batch_size,))
        if transport not in TRANSPORTS:
            raise ValueError("transport is %s, not %r" % (" or ".join(TRANSPORTS), transport))
        if isinstance(columns, str):
            raise ValueError('columns is a list of names: columns=["%s"]' % columns)
        if prefetch is not None and int(prefetch) < 0:
            raise ValueError("prefetch is a number of batches, not %r" % (prefetch,))
        single = isinstance(sources, (str, bytes, os.PathLike))
        names = [sources] if single else _listed(sources)
        if not (names and all(names)) and server is None:
            raise ValueError(
                "sources names no file: give a path, a folder, a glob, an address, or a list of "
                "them"
            )
        self.sources = [_absolute(os.fsdecode(name)) for name in names]
        self.batch_size, self.shuffled, self.seed = int(batch_size), bool(shuffle), int(seed)
        self.window = _bytes(window) if window is not None else 0
        self.drop_last, self.copy, self.prefetch = bool(drop_last), bool(copy), int(prefetch or 0)
        self.rank, self.world = _share(rank, world)
        self.even_ranks = bool(even_ranks)
        self.transport = transport
        options = {
            "format": format,
            "types": types,
            "delimiter": delimiter,
            "no_header": not header,
            "skip": skip_bad,
        }
        order = {
            "sources": self.sources,
            "columns": columns or [],
            "options": {name: value for name, value in options.items() if value},
            "budget": _bytes(budget),
        }
        self._server = Server(order, server)
        self._epoch = 0
        self._start = 0  # the global batch at which this pass began
        self._done = 0  # batches of this pass that were handed out here
        self._fresh = True  # the next iteration begins where the three say, not the next epoch
        self._answer: Optional[Dict[str, Any]] = None
        self._expected: Optional[str] = None  # what the data was when the loaded state was taken
        self._links: weakref.WeakSet[Any] = (
            weakref.WeakSet()
        )  # connections that iterations have open
        self._closed = False
        self._warned = False  # that rows are mixed poorly
        self.passes: Any = None  # what the workers of a DataLoader agree by; made by torch()
        self._passed: Any = None  # what stats are made of: a dict for every batch would take longer
        self._part: Optional[Dict[str, Any]] = None  # of the rows, see split()
        self._changes: List[Any] = []  # what map() and filter() do to a batch

    # --- what the stream is

    def _info(self) -> Dict[str, Any]:
        if self._answer is None:
            link = self._open(0, 1 << 62, 1)
            link.close()
            self._answer = link.answer
        return self._answer

    @property
    def columns(self) -> List[str]:
        """Names of the columns."""
        return [c["name"] for c in self._info()["columns"]]

    @property
    def schema(self) -> List[Dict[str, Any]]:
        """What each column is: name, kind, dtype, shape."""
        answer: List[Dict[str, Any]] = self._info()["columns"]
        return answer

    @property
    def rows(self) -> int:
        """Rows of an epoch, over all ranks."""
        answer: int = self._info()["rows"]
        return answer

    @property
    def skipped(self) -> int:
        """Bad rows that were left out, with skip_bad."""
        answer: int = self._info()["skipped"]
        return answer

    @property
    def bad_files(self) -> List[str]:
        """Files that could not be read at all and were left out, with skip_bad: file and reason."""
        answer: List[str] = self._info().get("bad_files", [])
        return answer

    @property
    def classes(self) -> List[str]:
        """Names of the classes of a folder of images: label 0 is the first."""
        return next((c["classes"] for c in self.schema if c.get("classes")), [])

    def __len__(self) -> int:
        """Batches of an epoch that this rank gets."""
        total, more = divmod(self._info()["batches"], self.world)
        if self.even_ranks:
            return int(total + (more > 0 and not self.drop_last))
        return int(total + (self.rank < more))

    def __getitem__(self, _: Any) -> Any:
        raise TypeError(
            "a Stream gives batches in its own order, not rows by their number: iterate over it; "
            "in torch write DataLoader(stream.torch(), batch_size=None, num_workers=...); "
            "stream.indexed() has rows by their number"
        )

    # --- other streams of the same data

    def select(self, *names: str) -> "Stream":
        """The stream with these columns alone, in this order."""
        unknown = [name for name in names if name not in self.columns]
        if unknown or not names:
            raise ValueError(
                "there is no column %r; there are %r" % (unknown[0], self.columns)
                if unknown
                else "select names the columns that stay: there are %r" % (self.columns,)
            )
        if self._server.address is not None:  # its server was started by hand, with its columns
            return self.map(_Pair(None, None, list(names), [], False))
        made = self._again()
        order = {**self._server.order, "sources": self.sources, "columns": list(names)}
        made._server = Server(order)
        return made

    def split(self, *shares: float, seed: int = 0) -> List["Stream"]:
        """Streams of disjoint rows, in these shares: `train, valid = stream.split(0.9, 0.1)`. Every
        thousand rows of a file are shared out at random, so that each part has its share of all
        stretches. Which rows are where depends on the files and the seed alone.
        """
        total = sum(shares)
        if len(shares) < 2 or min(shares) <= 0 or abs(total - 1) > 1e-9:
            raise ValueError(
                "the shares of split are at least two positive numbers that add up to 1, as in "
                "stream.split(0.9, 0.1), not %r" % (shares,)
            )
        low, high = (self._part or {}).get("from", 0.0), (self._part or {}).get("to", 1.0)
        if self._part is not None and self._part["seed"] != seed:
            raise ValueError("a part is split again with its own seed, %d" % self._part["seed"])
        made, at = [], 0.0
        for i, share in enumerate(shares):
            until = 1.0 if i + 1 == len(shares) else at + share
            one = self._again()
            one._part = {
                "from": low + at * (high - low),
                "to": high if i + 1 == len(shares) else low + until * (high - low),
                "seed": seed & 0xFFFFFFFFFFFFFFFF,
            }
            made.append(one)
            at = until
        return made

    def map(self, function: Callable[[Any], Any]) -> "Stream":
        """The stream with each batch replaced by function(batch): a dict of arrays or whatever the
        trainer takes. Workers of a DataLoader call it, each for its own batches.
        """
        made = self._again()
        made._changes.append(function)
        return made

    def filter(self, function: Callable[[Dict[str, Any]], Any]) -> "Stream":
        """The stream without the rows for which function(batch), an array of truth values with one
        a row, is false. Batches become shorter; on one rank, those without a row are left out.
        len() and state_dict() count batches as they are read.
        """
        made = self._again()
        made._changes.append(_Filter(function, self.world))
        return made

    def decode(self, function: Optional[Callable[[Any], Any]] = None, *columns: str) -> "Stream":
        """The stream with its images decoded: an RGB image of Pillow goes to function, such as
        `lambda image: image.resize((224, 224))` or a transform of torchvision. Results of one shape
        become one array. columns are those of encoded images, found by their names otherwise.
        """
        from .decoding import Decode, image_columns

        skip = bool(self._server.order["options"].get("skip"))
        return self.map(Decode(image_columns(self.schema, list(columns)), function, skip))

    def shuffle(self, seed: int = 0) -> "Stream":
        """The stream with its rows mixed, as shuffle=True makes it."""
        made = self._again()
        made.shuffled, made.seed = True, int(seed)
        return made

    def indexed(self) -> Any:
        """The rows by their numbers, in the order of the files: a map-style data set for torch,
        DataLoader(stream.indexed(), batch_size=64, shuffle=True). Reading batches of the stream
        itself is many times faster.
        """
        from .indexing import Indexed

        if any(isinstance(change, _Filter) for change in self._changes):
            raise ValueError(
                "rows that filter() leaves have no numbers: filter what indexed() gives"
            )
        return Indexed(self)

    def _pick(self) -> Any:
        """A connection that answers numbers of rows, and what makes arrays of its answers."""
        link = self._open(0, 0, 1, pick=True)
        self._links.add(link)
        return link, _arranger(link.answer["columns"])

    def _changed(self, batch: Any) -> Any:
        """What map(), filter() and the like make of a batch."""
        for change in self._changes:
            if batch is not _EMPTY:
                batch = change(batch)
        return batch

    def _again(self) -> "Stream":
        """A stream of the same data that begins at its start."""
        made = copy_module.copy(self)
        made._changes = list(self._changes)
        made.passes, made._passed, made._answer, made._expected = None, None, None, None
        made._go_to(0)
        return made

    @property
    def epoch(self) -> int:
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """The next iteration gives this epoch, from its start."""
        self._go_to(int(epoch))
        self._expected = None
        if self.passes is not None:
            self.passes.choose(self._epoch)

    def _go_to(self, epoch: int, start: int = 0, done: int = 0) -> None:
        """The next iteration begins there."""
        self._epoch, self._start, self._done, self._fresh = epoch, start, done, True

    # --- iterating

    def __iter__(self) -> Iterator[Dict[str, Any]]:
        return self._iterate(0, 1)

    def _iterate(self, worker: int, workers: int) -> Iterator[Any]:
        """Batches of one of several workers that take turns."""
        if not self._fresh:
            self._go_to(self._epoch + 1)
        self._fresh = False
        stride = self.world * workers
        epoch, first = self._epoch, self._start + self.rank + self.world * worker
        link = self._open(epoch, first + stride * self._done, stride)
        self._links.add(link)
        self._answer = link.answer
        self._warn(link.answer)
        if self._expected and link.answer.get("data") not in (None, self._expected):
            link.close()
            raise FeedError(
                "memroom: the data has changed since the state was taken (other files, rows or "
                "sizes): rows would come twice or not at all. Start the epoch anew, with set_epoch"
            )
        arrays = _arranger(link.answer["columns"])
        began, batches, rows = time.perf_counter(), 0, 0
        lent = None
        try:
            while True:
                if lent is not None:
                    link.release(lent)
                    lent = None
                message = link.next()
                now = time.perf_counter()
                self._passed = (began, now, link.waited, batches, rows, link.report)
                if message is None:
                    break
                slot, _, count, spans, memory = message
                batch = arrays(count, spans, memory, self.copy)
                if self.copy:
                    link.release(slot)
                else:
                    lent = slot
                batches += 1
                rows += count
                self._done += 1
                made: Any = batch
                if self._changes:
                    made = self._changed(made)
                if made is not _EMPTY:
                    yield made
            if self._epoch == epoch:
                self._go_to(epoch + 1)
        finally:
            link.close()

    def _warn(self, answer: Dict[str, Any]) -> None:
        """Says once that the rows are not mixed well."""
        if not 0 < answer["classes"] < WELL_MIXED or self._warned:
            return
        self._warned = True
        warnings.warn(
            "memroom: a window of %d MiB mixes these rows poorly: where the data is sorted by ten "
            "classes, a batch would hold %.1f of them. Give a larger budget= or window=, or write "
            "the rows in another order once: `memroom feed convert --shuffle`"
            % (answer["window"] >> 20, 10 * answer["classes"]),
            stacklevel=3,
        )

    @property
    def stats(self) -> Dict[str, Any]:
        """Seconds of the last iteration, how many of them were spent waiting for data, batches and
        rows; at its end also what the server reports. Empty before the first batch.
        """
        if self._passed is None:
            return {}
        began, until, waited, batches, rows, report = self._passed
        found = {
            "seconds": until - began,
            "waited": waited,
            "waited_share": waited / (until - began) if until > began else 0.0,
            "batches": batches,
            "rows": rows,
        }
        return {**found, "server": report} if report else found

    # --- ending

    def close(self) -> None:
        """Lets go of the server now. Iterating again raises; the server ends two seconds after its
        last consumer. A stream that is not closed is closed when nobody refers to it any more.
        """
        self._closed = True
        for link in list(self._links):
            link.close()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __getstate__(self) -> Dict[str, Any]:
        """Without the connections of this process: a copy, and a worker's stream, makes its own."""
        return {**self.__dict__, "_links": None}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__dict__.update(state, _links=weakref.WeakSet())

    def _open(self, epoch: int, start: int, stride: int, pick: bool = False) -> Link:
        if self._closed:
            raise ValueError("this stream was closed: make a new memroom.Stream")
        spec: Dict[str, Any] = {
            "shuffle": self.shuffled,
            "seed": self.seed & 0xFFFFFFFFFFFFFFFF,
            "window": self.window,
            "batch": self.batch_size,
            "drop_last": self.drop_last,
        }
        if self._part is not None:
            spec["part"] = self._part
        request = {
            "version": 3,
            "spec": spec,
            "epoch": epoch,
            "start": start,
            "stride": stride,
            "from": self._start,
            "world": self.world if self.even_ranks else 1,
            "depth": self.prefetch,
            "transport": self.transport,
            "pick": pick,
        }
        return Link(self._server, request)

    def report(self) -> str:
        """One sentence about the last iteration."""
        s = self.stats
        if not s:
            return "nothing was read yet"
        text = "%d rows in %.1f s; the trainer waited %.1f %% of it for data" % (
            s["rows"],
            s["seconds"],
            100 * s["waited_share"],
        )
        server = s.get("server")
        if server:
            text += "; %d batches were ahead; the server's peak was %.1f MiB of %.1f MiB" % (
                server.get("prefetch", 0),
                server["peak"] / 2**20,
                server["budget"] / 2**20,
            )
            if server.get("shrunk_to"):
                text += "; it made do with %.1f MiB while memory was short (%s)" % (
                    server["shrunk_to"] / 2**20,
                    server.get("shrunk_by"),
                )
        return text

    # --- resuming

    def state_dict(self) -> Dict[str, Any]:
        """Where the stream is, after the batches handed out so far. The same on every rank that has
        taken as many steps; it may be loaded with another world size.
        """
        return self.state_at(self._done)

    def state_at(self, batches: int) -> Dict[str, Any]:
        """The state after so many batches of this pass, for callers that know better: a DataLoader
        with workers fetches batches ahead of the trainer.
        """
        return {
            "version": 1,
            "epoch": self._epoch,
            "batch": self._start + int(batches) * self.world,
            "data": self._answer.get("data") if self._answer else self._expected,
            **self._order(),
        }

    def _order(self) -> Dict[str, Any]:
        return {
            "seed": self.seed,
            "shuffle": self.shuffled,
            "batch_size": self.batch_size,
            "window": self.window or (self._answer["window"] if self._answer else 0),
            "part": self._part,
        }

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Continues where the state was taken."""
        if not isinstance(state, dict) or not {"epoch", "batch"} <= state.keys():
            raise ValueError(
                "this is not a stream's state, which has an epoch and a batch: give what "
                "state_dict() of a stream gave (%r)" % (state,)
            )
        window = state.get("window", 0)
        if not self.window and window:  # it followed another budget: the order must not
            self.window = int(window)
            self._answer = None
        for name, value in self._order().items():
            if state.get(name, value) != value:
                raise ValueError(
                    "this state was taken with %s=%r, the stream has %r: rows would come in "
                    "another order. Give it the same, or start the epoch anew"
                    % (name, state[name], value)
                )
        self._go_to(int(state["epoch"]), int(state["batch"]))
        self._expected = state.get("data")
        if self.passes is not None:
            self.passes.choose(None)

    # --- frameworks

    def torch(self, x: Any = None, y: Any = None, stack: bool = False) -> Any:
        """A torch IterableDataset of dicts of tensors; texts and lists stay NumPy objects. Use
        DataLoader(stream.torch(), batch_size=None, num_workers=...): the batches are made already.
        With x, y or stack it is one of (x, y), as for keras(): stack=True makes one tensor with a
        column for each name.
        """
        from . import stream_torch

        chosen = (
            self if x is None and y is None and not stack else self.map(self._pair(x, y, stack))
        )
        return stream_torch.dataset(chosen)

    def _pair(self, x: Any, y: Any, stack: bool) -> Callable[[Dict[str, Any]], Any]:
        """What makes (x, y) of a batch."""
        labels = [y] if isinstance(y, str) else list(y or [])
        inputs = [x] if isinstance(x, str) else x
        if not self._changes:  # what map() makes has columns of its own
            unknown = [name for name in [*(inputs or []), *labels] if name not in self.columns]
            if unknown:
                raise ValueError("there is no column %r; there are %r" % (unknown[0], self.columns))
        return _Pair(x, y, inputs, labels, stack)

    def tf(self) -> Any:
        """A tf.data.Dataset of dicts, one epoch each time it is iterated."""
        from . import stream_keras

        return stream_keras.tensorflow(self)

    def keras(self, x: Any = None, y: Any = None, stack: bool = False) -> Any:
        """A keras PyDataset of (x, y): column names, or lists of them; x of all others if None. A
        list gives a dict of inputs by name; with stack=True it gives one array with a column each.
        """
        from . import stream_keras

        return stream_keras.keras(self, x, y, stack)

    def hf(self) -> Any:
        """A datasets.IterableDataset of rows."""
        import datasets

        def rows() -> Iterator[Dict[str, Any]]:
            for batch in self:
                names = list(batch)
                for values in zip(*[_python(column) for column in batch.values()]):
                    yield dict(zip(names, values))

        return datasets.IterableDataset.from_generator(rows)

    def arrow(self) -> Iterator[Any]:
        """pyarrow record batches."""
        import pyarrow

        for batch in self:
            arrays = {
                name: list(values) if values.ndim > 1 else pyarrow.array(values, from_pandas=True)
                for name, values in batch.items()
            }
            yield pyarrow.RecordBatch.from_pydict(arrays)


_EMPTY = object()  # a batch whose rows were all filtered out


class _Filter:
    """Keeps the rows of a batch that a function chooses."""

    def __init__(self, function: Callable[[Dict[str, Any]], Any], ranks: int) -> None:
        self.function = function
        self.ranks = ranks

    def __call__(self, batch: Dict[str, Any]) -> Any:
        import numpy

        kept = numpy.asarray(self.function(batch))
        rows = len(next(iter(batch.values())))
        if kept.dtype != bool or kept.shape != (rows,):
            raise ValueError(
                "filter's function returns an array of truth values, one for each of the %d rows "
                "of the batch; it returned %s of shape %s" % (rows, kept.dtype, kept.shape)
            )
        if self.ranks == 1 and not kept.any():
            return _EMPTY
        return batch if kept.all() else {name: values[kept] for name, values in batch.items()}


class _Pair:
    """Makes (x, y) of a batch, or x alone."""

    ours = True  # no function of a user's: no work for workers

    def __init__(self, x: Any, y: Any, inputs: Any, labels: List[str], stack: bool) -> None:
        self.x, self.y, self.inputs, self.labels, self.stack = x, y, inputs, labels, stack

    def __call__(self, batch: Dict[str, Any]) -> Any:
        import numpy

        wanted = self.inputs
        if wanted is None:
            wanted = [name for name in batch if name not in self.labels]
        given: Any = {name: batch[name] for name in wanted}
        if self.stack:
            given = numpy.column_stack([batch[name] for name in wanted])
        elif isinstance(self.x, str) or self.inputs is None and len(wanted) == 1:
            given = batch[wanted[0]]
        if self.y is None:
            return given
        if isinstance(self.y, str):
            return given, batch[self.y]
        return given, {name: batch[name] for name in self.labels}


def _absolute(name: str) -> str:
    return name if "://" in name else os.path.abspath(os.path.expanduser(name))


def _listed(sources: Any) -> List[Any]:
    try:
        return list(sources)
    except TypeError:
        raise ValueError(
            "sources is a path, a folder, a glob, an address, or a list of them, not %r"
            % (sources,)
        ) from None


def _python(values: Any) -> List[Any]:
    """A column as Python objects, which the other data sets of Hugging Face give too."""
    if values.dtype.kind in "mM":
        values = values.astype(values.dtype.str[:3] + "[us]")  # nanoseconds would come as numbers
    plain: List[Any] = values.tolist()
    if values.dtype == object:
        return [value.tolist() if hasattr(value, "tolist") else value for value in plain]
    return plain


def _share(rank: Optional[int], world: Optional[int]) -> Any:
    if rank is None and world is None:
        rank = int(os.environ.get("RANK", 0)) if "WORLD_SIZE" in os.environ else 0
        world = int(os.environ.get("WORLD_SIZE", 1)) if "RANK" in os.environ else 1
    rank, world = int(rank or 0), int(world if world is not None else 1)
    if not 0 <= rank < world:
        raise ValueError("rank %d is not below world %d: ranks begin at 0" % (rank, world))
    return rank, world


def _bytes(size: Any) -> int:
    """Sizes as memroom writes them: 24g, 24GB and 24GiB are all 24 x 2^30."""
    text = str(size).strip().lower()
    number = text.rstrip("bikmgt ")
    unit = text[len(number) :].strip()[:1]
    power = {"": 0, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}.get(unit)
    try:
        if power is None:
            raise ValueError
        count = int(float(number) * (1 << power))
        if count < 0:
            raise ValueError
        return count
    except ValueError:
        raise ValueError("%r is not a size: write 256MiB, or a number of bytes" % (size,)) from None


def _arranger(columns: Any) -> Callable[[int, Any, memoryview, bool], Dict[str, Any]]:
    """A function that returns batches as NumPy arrays. What is the same for all is found once: a
    trainer with short steps waits for every microsecond spent here.
    """
    import numpy

    fixed, others, at = [], [], 0
    for column in columns:
        if column["kind"] == "fixed":
            shape = tuple(column.get("shape", ()))
            fixed.append((column["name"], 2 * at, numpy.dtype(column["dtype"]), shape))
            at += 1
        else:
            others.append((column, 2 * at))
            at += 3
    names = [column["name"] for column in columns]
    ndarray = numpy.ndarray

    def arrays(rows: int, spans: Any, memory: memoryview, copy: bool) -> Dict[str, Any]:
        batch = dict.fromkeys(names) if others else {}
        for name, at, dtype, shape in fixed:
            if spans[at + 1]:
                values: Any = ndarray((rows, *shape), dtype, memory, spans[at])
            else:
                values = numpy.zeros((rows, *shape), dtype)
            batch[name] = values.copy() if copy else values
        for column, at in others:
            offset, size, content, length, where, count = spans[at : at + 6]
            ends = numpy.frombuffer(memory[offset : offset + size], "<i8").tolist()
            text = bytes(memory[content : content + length])
            missing = bytes(memory[where : where + count])
            batch[column["name"]] = _objects(numpy, column, ends, text, missing)
        return batch

    return arrays


def _objects(numpy: Any, column: Any, ends: Any, content: bytes, missing: bytes) -> Any:
    values: List[Any] = []
    start = 0
    kind = column["kind"]
    for end in ends:
        part = content[start:end]
        start = end
        if kind == "text":
            values.append(part.decode("utf-8", "surrogateescape"))
        elif kind == "binary":
            values.append(part)
        else:
            values.append(numpy.frombuffer(part, column["dtype"]).copy())
    if missing:
        values = [None if gone else value for value, gone in zip(values, missing)]
    out = numpy.empty(len(values), object)
    for i, value in enumerate(values):
        out[i] = value
    return out
