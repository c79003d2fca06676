"""Pages from templates: every value is escaped unless it is markup already."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

HERE = "fedkeel.reporting"


def render(template: str, package: str = HERE, /, **values: Any) -> Markup:
    """A template in the folder ``templates`` of a package, which may use all of those here, filled with values."""
    return Markup(_environment(package).get_template(template).render(values))


@cache
def _environment(package: str) -> Environment:
    return Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in dict.fromkeys((package, HERE))]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
