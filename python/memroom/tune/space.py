"""What is searched: domains, wherever they stand in the settings, and the values they take.

The command samples numbers and choices. A value of a choice that its JSON has no word for goes by
its place, so what reaches the training function is the very object that was given.
"""

import copy
import json
import math
import numbers
import random as _random
from typing import Any, Callable, Dict, List, Optional, Tuple

_WHOLE = ("randint", "qrandint", "lograndint", "qlograndint")


class Domain:
    """What one setting may be; `text` is how the command writes it."""

    def __init__(self, name: str, *args: Any, values: Optional[List[Any]] = None) -> None:
        self.name, self.args, self.values = name, args, values
        self.text = "%s(%s)" % (name, ", ".join(repr(a) for a in (values or args)))

    def __repr__(self) -> str:
        return self.text

    def described(self) -> Any:
        """The domain for the study file."""
        return self.text if self.values is None else {self.name: self._words()}

    def _words(self) -> List[Any]:
        """The values in JSON. Those without a word of their own go by their place."""
        words: List[Any] = []
        seen: List[Any] = []
        for i, value in enumerate(self.values or []):
            word, known = _word(value)
            same = known and any(type(word) is type(w) and word == w for w in seen)
            if isinstance(word, (int, float)) and not isinstance(word, bool):
                same = any(not isinstance(w, (bool, str)) and w == word for w in seen)
            seen.append(word if known else None)
            words.append(word if known and not same else "#%d %s" % (i, _short(value)))
        return words

    def restored(self, value: Any) -> Any:
        """The value that a word of the command stands for."""
        if self.values is None:
            return int(value) if self.name in _WHOLE else float(value)
        words = self._words()
        for word, given in zip(words, self.values):
            if isinstance(word, bool) == isinstance(value, bool) and word == value:
                return given
        raise ValueError(
            "%r is none of the values of %s: has the script changed since the study began?"
            % (value, self.text)
        )

    def sample(self, spec: Any = None, size: int = 1, random_state: Any = None) -> Any:
        """Draws from the domain, as Ray's Domain.sample."""
        if hasattr(random_state, "random"):
            drawn = random_state
        else:
            drawn = _random.Random(random_state) if random_state is not None else _random
        found = [self._draw(drawn) for _ in range(size)]
        return found[0] if size == 1 else found

    def __call__(self) -> Any:
        """A value, for Ray's objects: they take functions that draw where a domain is not Ray's."""
        return self.sample()

    def _draw(self, drawn: Any) -> Any:
        if self.values is not None:
            return self.values[int(drawn.random() * len(self.values))]
        name, args, step = self.name, list(self.args), None
        if name.startswith("q"):
            name, step = name[1:], args.pop()
        if name == "randn":
            value = drawn.gauss(*args) if hasattr(drawn, "gauss") else drawn.normal(*args)
        elif name.startswith("log"):
            value = math.exp(drawn.uniform(math.log(args[0]), math.log(args[1])))
        elif name == "randint":
            value = args[0] + math.floor(drawn.random() * (args[1] - args[0] + bool(step)))
        else:
            value = drawn.uniform(*args)
        if step:
            value = round(value / step) * step
        if self.name not in _WHOLE:
            return float(value)
        return max(args[0], min(int(value), args[1] - (0 if step else 1)))


class Function(Domain):
    """A setting that a function makes of the others."""

    def __init__(self, func: Callable[..., Any]) -> None:
        super().__init__("sample_from", getattr(func, "__name__", "function"))
        self.func = func

    def sample(self, spec: Any = None, size: int = 1, random_state: Any = None) -> Any:
        return self.func(spec)


def _word(value: Any) -> Tuple[Any, bool]:
    """The JSON word of a value, and whether it has one that comes back unchanged."""
    if value is None or isinstance(value, bool):
        return value, True
    if isinstance(value, str):
        return value, value.isprintable() and not value.startswith("#") and not _numeric(value)
    if isinstance(value, numbers.Integral):
        return int(value), abs(int(value)) < 2**53
    if isinstance(value, numbers.Real):
        return float(value), math.isfinite(value)
    return None, False


def _numeric(text: str) -> bool:
    """Whether a string reads as another word of JSON."""
    try:
        json.loads(text)
    except ValueError:
        return text != text.strip() or text == ""
    return True


def _short(value: Any) -> str:
    text = getattr(value, "__name__", None) or repr(value)
    return " ".join(text.split())[:60]


def uniform(lower: float, upper: float) -> Domain:
    return Domain("uniform", lower, upper)


def quniform(lower: float, upper: float, q: float) -> Domain:
    return Domain("quniform", lower, upper, q)


def loguniform(lower: float, upper: float, base: float = 10) -> Domain:
    return Domain("loguniform", lower, upper)  # the base changes nothing in what is drawn


def qloguniform(lower: float, upper: float, q: float, base: float = 10) -> Domain:
    return Domain("qloguniform", lower, upper, q)


def randint(lower: int, upper: int) -> Domain:
    """Whole numbers below upper."""
    return Domain("randint", lower, upper)


def qrandint(lower: int, upper: int, q: int = 1) -> Domain:
    return Domain("qrandint", lower, upper, q)


def lograndint(lower: int, upper: int, base: float = 10) -> Domain:
    return Domain("lograndint", lower, upper)


def qlograndint(lower: int, upper: int, q: int, base: float = 10) -> Domain:
    return Domain("qlograndint", lower, upper, q)


def randn(mean: float = 0.0, sd: float = 1.0) -> Domain:
    return Domain("randn", mean, sd)


def qrandn(mean: float, sd: float, q: float) -> Domain:
    return Domain("qrandn", mean, sd, q)


def choice(categories: Any) -> Domain:
    return Domain("choice", values=list(categories))


def grid_search(values: Any) -> Domain:
    return Domain("grid_search", values=list(values))


def sample_from(func: Callable[..., Any]) -> Domain:
    """A value that func makes of the other settings, as `lambda spec: spec.config.x * 2`."""
    return Function(func)


def domain(value: Any) -> Any:
    """The domain that a value is, with Ray's older form {"grid_search": [...]} and Ray's own
    domain objects; any other value as it is.
    """
    if isinstance(value, dict) and list(value) == ["grid_search"]:
        return grid_search(value["grid_search"])
    if type(value).__module__.startswith("ray.tune.search.sample"):
        return _of_ray(value)
    return value


def _of_ray(value: Any) -> Domain:
    if hasattr(value, "categories"):
        return choice(value.categories)
    if hasattr(value, "func"):
        return Function(value.func)
    sampler: Any = value.get_sampler() if hasattr(value, "get_sampler") else None
    step = getattr(sampler, "q", None)
    if step is not None:
        sampler = sampler.sampler
    kind = type(sampler).__name__.lower()
    if "normal" in kind:
        args, name = [sampler.mean, sampler.sd], "randn"
    elif "uniform" in kind and math.isfinite(value.lower) and math.isfinite(value.upper):
        whole = type(value).__name__ == "Integer"
        args, name = [value.lower, value.upper], "randint" if whole else "uniform"
        if "log" in kind:
            name = "log" + name
    else:
        return Function(lambda spec: value.sample(spec))
    if step is not None:
        name, args = "q" + name, args + [step]
    return Domain(name, *args)


def rebuilt(value: Any, put: Callable[[str, Domain], Any], path: str = "") -> Any:
    """A copy of settings with put(path, domain) in the place of every domain, however deep. Parts
    without a domain are the very objects that were given.
    """
    value = domain(value)
    if isinstance(value, Domain):
        return put(path, value)
    if isinstance(value, dict):
        inner = {k: rebuilt(v, put, _below(path, k)) for k, v in value.items()}
        if all(inner[k] is value[k] for k in value):
            return value
        out = copy.copy(value)
        out.update(inner)
        return out
    if isinstance(value, (list, tuple)):
        items = [rebuilt(v, put, _below(path, i)) for i, v in enumerate(value)]
        if all(a is b for a, b in zip(items, value)):
            return value
        if hasattr(value, "_make"):
            return value._make(items)
        return type(value)(items)
    return value


def _below(path: str, key: Any) -> str:
    return "%s/%s" % (path, key) if path else str(key)


def collected(config: Any) -> Dict[str, Domain]:
    """Every domain of settings by its path, those inside of a choice's values too."""
    found: Dict[str, Domain] = {}

    def put(path: str, one: Domain) -> Any:
        if path in found:
            raise ValueError("two settings are called %r: rename one of them" % path)
        found[path] = one
        for i, value in enumerate(one.values or []):
            rebuilt(value, put, "%s#%d" % (path, i))
        return one

    rebuilt(config, put)
    return found


class Spec(dict):
    """Settings as sample_from's function sees them: spec.config.lr, spec["config"]["lr"] and
    config["lr"] are the same.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "config" and name not in self:
            return self
        return self[name]

    def __getitem__(self, name: Any) -> Any:
        if name == "config" and name not in self:
            return self
        value = super().__getitem__(name)
        if isinstance(value, Function):
            raise _Later
        return Spec(value) if isinstance(value, dict) else value


class _Later(Exception):
    """A setting is asked for that is not known yet."""


def filled(config: Any, params: Dict[str, Any], made: Optional[Dict[str, Any]] = None) -> Any:
    """Settings with the trial's values in place of their domains. sample_from comes last; `made`
    has what its functions gave before, by path, and takes what they give now.
    """
    known_before = {} if made is None else made

    def put(path: str, one: Domain) -> Any:
        if isinstance(one, Function):
            return one
        value = one.restored(params[path])
        if one.values is None:
            return value
        at = next(i for i, v in enumerate(one.values) if v is value)
        return rebuilt(value, put, "%s#%d" % (path, at))

    out = rebuilt(config, put)
    while True:
        waiting: List[str] = []
        known = Spec(out) if isinstance(out, dict) else Spec()

        def make(path: str, one: Domain, known: Spec = known, waiting: List[str] = waiting) -> Any:
            try:
                if path not in known_before:
                    known_before[path] = one.sample(known)
                return known_before[path]
            except _Later:
                waiting.append(path)
                return one

        before = out
        out = rebuilt(out, make)
        if not waiting:
            return out
        if out is before or len(waiting) == len(collected(before)):
            raise ValueError("sample_from: %s wait for each other" % ", ".join(waiting))


def flat(values: Dict[str, Any], prefix: str = "") -> Dict[str, Any]:
    """Nested results with paths for names."""
    out: Dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            out.update(flat(value, "%s%s/" % (prefix, name)))
        else:
            out["%s%s" % (prefix, name)] = value
    return out
