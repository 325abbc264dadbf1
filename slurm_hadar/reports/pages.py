"""HTML pages: one file each, with nothing loaded from elsewhere and all values escaped."""

from functools import cache
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined


def render(template: str, **values: object) -> str:
    """A page of ``templates/`` with these values, which may be hostile."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    return Environment(
        loader=FunctionLoader(_source),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _source(name: str) -> str:
    return resources.files("slurm_hadar.reports").joinpath("templates", name).read_text()
