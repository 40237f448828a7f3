"""Replaces names of modules in a process of its own, where a limit of production would need too much data."""


def replace_by(module: object, name: str, value: object) -> None:
    """Replace a name that a module really uses."""
    names = vars(module)
    if name not in names:
        raise LookupError(f"{module} has no {name}")
    names[name] = value
