"""What the code of a module refers to outside of the module: variables of its file and of enclosing
functions.
"""

import types


def functions(kind):
    """The methods that a class itself defines; torch's own classes are not looked into."""
    if (kind.__module__ or "").startswith("torch."):
        return []
    return [f for f in vars(kind).values() if isinstance(f, types.FunctionType)]


def variables(kind):
    """(namespace, name, value) of the file's variables that the methods of a class name."""
    return [
        (f.__globals__, name, f.__globals__[name])
        for f in functions(kind)
        for name in f.__code__.co_names
        if name in f.__globals__
    ]


def values(kind):
    """Everything that the methods of a class can reach by a name of their own."""
    return [value for _, _, value in variables(kind)] + [
        v for f in functions(kind) for cell in f.__closure__ or () for v in _content(cell)
    ]


def _content(cell):
    try:
        return [cell.cell_contents]
    except ValueError:  # not assigned yet
        return []
