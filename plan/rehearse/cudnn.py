"""Asks the cuDNN library how much scratch it wants for a convolution, without a card.

Since 9.8 the library can compile for a card that is described rather than present. torch, on a
machine with that card, takes the first configuration that the library's heuristics propose; here
the same question is put for the described card. The library that is asked is the one torch itself
has loaded, so the answer belongs to the version that will train.
"""

import ctypes
import json
from typing import Any, List, Sequence, Tuple

Laid = Tuple[Sequence[int], Sequence[int]]  # shape and strides

FLOAT, HALF, BFLOAT16 = 0, 2, 9

# Kinds of descriptors, attributes and values of cudnn_graph.h.
_CONVOLUTION, _ENGINE, _CONFIG, _HEURISTICS, _PLAN = 1, 2, 3, 4, 5
_GRAPH, _TENSOR, _CARD = 15, 17, 38
_OPERATION = {"forward": 10, "filter": 11, "data": 12}
_FIRST = {
    "forward": 700,
    "data": 706,
    "filter": 712,
}  # alpha, beta, convolution, then three tensors
_TENSORS = {
    "forward": (703, 704, 705),
    "data": (709, 710, 711),
    "filter": (715, 716, 717),
}  # w, x, y
_TYPE_DATA, _TYPE_INT, _TYPE_FLOAT, _TYPE_MODE, _TYPE_HEURISTIC, _TYPE_DESCRIPTOR, _TYPE_CHAR = (
    1,
    3,
    4,
    7,
    8,
    15,
    24,
)


# Off in processes that were forked: beside a real card the library does not survive that.
asked = True


class Refused(Exception):
    """The library cannot answer; says which call failed."""


def described(p: Any) -> bytes:
    """The card's properties in the form the library reads; names and values that matter to
    heuristics.
    """
    return json.dumps(
        {
            "maxGridSize": [2147483647, 65535, 65535],
            "maxBlockSize": [1024, 1024, 64],
            "regsPerBlock": p.regs_per_multiprocessor,
            "multiProcessorCount": p.multi_processor_count,
            "warpSize": 32,
            "maxSharedMemoryPerBlock": p.shared_memory_per_block,
            "maxSharedMemoryPerBlockOptin": p.shared_memory_per_block_optin,
            "reservedSharedMemoryPerBlock": 1024,
            "maxRegistersPerSM": 65536,
            "maxCtasPerSM": 32 if p.major != 8 or p.minor == 0 else 16 if p.minor == 6 else 24,
            "maxThreadsPerBlock": 1024,
            "maxThreadsPerSM": p.max_threads_per_multi_processor,
            "pciDeviceId": 0,
            "isTccDriver": 0,
            "supportCoopLaunch": 1,
            "totalGlobalMem": p.total_memory,
            "smClockRateKHz": p.clock_rate,
            "memClockRateKHz": p.memory_clock_rate,
            "l2CacheSize": p.L2_cache_size,
            "cudaDeviceId": 0,
            "deviceVer": p.major * 100 + p.minor * 10,
            "driverVer": 13000,
            "deviceName": p.name,
        },
        separators=(",", ":"),
    ).encode()


class Library:
    """The loaded library and the described card. Raises Refused where it is absent, too old or
    cannot describe cards.
    """

    def __init__(self, properties: Any) -> None:
        try:
            self.lib = ctypes.CDLL("libcudnn.so.9")
            self.card = self._new(_CARD)
        except (OSError, AttributeError) as e:
            raise Refused(str(e)) from None
        text = described(properties)
        self._put(self.card, 2702, _TYPE_CHAR, len(text) + 1, ctypes.c_char_p(text))
        self._finish(self.card)

    def workspace(
        self,
        kind: str,
        x: Laid,
        w: Laid,
        y: Laid,
        dtype: int,
        padding: Sequence[int],
        stride: Sequence[int],
        dilation: Sequence[int],
    ) -> Tuple[int, int]:
        """Bytes for one convolution, and the number of the engine that takes them; kind is forward,
        data or filter (what is computed), x, w, y are (shape, strides).
        """
        made: List[ctypes.c_void_p] = []
        try:
            tensors = [
                self._tensor(made, ident, shape, strides, dtype)
                for ident, (shape, strides) in ((119, w), (120, x), (121, y))
            ]
            conv = self._made(made, _CONVOLUTION)
            self._word(conv, 100, _TYPE_DATA, FLOAT)
            self._word(conv, 101, _TYPE_MODE, 1)
            for attribute, values in (
                (106, [len(padding)]),
                (105, padding),
                (104, padding),
                (102, dilation),
                (103, stride),
            ):
                self._ints(conv, attribute, values)
            self._finish(conv)
            operation = self._made(made, _OPERATION[kind])
            first = _FIRST[kind]
            self._put(operation, first, _TYPE_FLOAT, 1, ctypes.byref(ctypes.c_float(1)))
            self._put(operation, first + 1, _TYPE_FLOAT, 1, ctypes.byref(ctypes.c_float(0)))
            self._link(operation, first + 2, conv)
            for attribute, tensor in zip(_TENSORS[kind], tensors):
                self._link(operation, attribute, tensor)
            self._finish(operation)
            graph = self._made(made, _GRAPH)
            self._link(graph, 801, operation)
            self._finish(graph)
            return self._first_plan(made, graph)
        finally:
            for d in made:
                self.lib.cudnnBackendDestroyDescriptor(d)

    def _first_plan(self, made: List[ctypes.c_void_p], graph: ctypes.c_void_p) -> Tuple[int, int]:
        heuristics = self._made(made, _HEURISTICS)
        self._link(heuristics, 201, graph)
        self._word(heuristics, 200, _TYPE_HEURISTIC, 0)
        self._link(heuristics, 204, self.card)
        self._finish(heuristics)
        wanted = 4  # a proposal that cannot be compiled is skipped, as torch does
        configs = [self._made(made, _CONFIG) for _ in range(wanted)]
        array, count = (ctypes.c_void_p * wanted)(*[c.value for c in configs]), ctypes.c_int64(0)
        self._check(
            self.lib.cudnnBackendGetAttribute(
                heuristics,
                202,
                _TYPE_DESCRIPTOR,
                ctypes.c_int64(wanted),
                ctypes.byref(count),
                array,
            ),
            "proposals",
        )
        for config in configs[: count.value]:
            plan, size = self._made(made, _PLAN), ctypes.c_int64(0)
            try:
                self._link(plan, 401, config)
                self._link(plan, 407, self.card)
                self._finish(plan)
                self._read(plan, 402, _TYPE_INT, size)
                engine = self._made(made, _ENGINE)
                self._read(config, 300, _TYPE_DESCRIPTOR, engine)
                number = ctypes.c_int64(0)
                self._read(engine, 1301, _TYPE_INT, number)
                return size.value, number.value
            except Refused:
                continue
        raise Refused("no proposal compiles")

    def _tensor(
        self,
        made: List[ctypes.c_void_p],
        ident: int,
        shape: Sequence[int],
        strides: Sequence[int],
        dtype: int,
    ) -> ctypes.c_void_p:
        d = self._made(made, _TENSOR)
        self._word(d, 901, _TYPE_DATA, dtype)
        for attribute, values in ((902, shape), (903, strides), (906, [ident]), (900, [32])):
            self._ints(d, attribute, values)
        return self._finish(d)

    def _made(self, made: List[ctypes.c_void_p], kind: int) -> ctypes.c_void_p:
        made.append(self._new(kind))
        return made[-1]

    def _new(self, kind: int) -> ctypes.c_void_p:
        d = ctypes.c_void_p()
        self._check(
            self.lib.cudnnBackendCreateDescriptor(kind, ctypes.byref(d)), "descriptor %d" % kind
        )
        return d

    def _read(self, d: ctypes.c_void_p, attribute: int, kind: int, into: Any) -> None:
        count, one = ctypes.c_int64(0), ctypes.c_int64(1)
        self._check(
            self.lib.cudnnBackendGetAttribute(
                d, attribute, kind, one, ctypes.byref(count), ctypes.byref(into)
            ),
            "attribute %d" % attribute,
        )

    def _put(self, d: ctypes.c_void_p, attribute: int, kind: int, count: int, values: Any) -> None:
        self._check(
            self.lib.cudnnBackendSetAttribute(d, attribute, kind, ctypes.c_int64(count), values),
            "attribute %d" % attribute,
        )

    def _ints(self, d: ctypes.c_void_p, attribute: int, values: Sequence[int]) -> None:
        self._put(d, attribute, _TYPE_INT, len(values), (ctypes.c_int64 * len(values))(*values))

    def _word(self, d: ctypes.c_void_p, attribute: int, kind: int, value: int) -> None:
        self._put(d, attribute, kind, 1, ctypes.byref(ctypes.c_int32(value)))

    def _link(self, d: ctypes.c_void_p, attribute: int, other: ctypes.c_void_p) -> None:
        self._put(d, attribute, _TYPE_DESCRIPTOR, 1, ctypes.byref(other))

    def _finish(self, d: ctypes.c_void_p) -> ctypes.c_void_p:
        self._check(self.lib.cudnnBackendFinalize(d), "finalize")
        return d

    @staticmethod
    def _check(status: int, what: str) -> None:
        if status:
            raise Refused("cuDNN refused %s (status %d)" % (what, status))
