"""What every section of a configuration is: frozen, and strict about its keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, model_validator

from fedkeel.core.registry import Registry


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class Open(Section):
    """A section of which one setting names the class, and the class may have settings of its own.

    A class right below this one holds what all have in common; what it validates becomes a value of the class named.
    """

    registry: ClassVar[Registry[Any]]
    naming: ClassVar[str]
    """The setting that names the class, by what stands before a colon in it."""
    usual: ClassVar[str]
    """Its value in a section that has none."""

    @classmethod
    def named(cls, settings: Mapping[str, Any]) -> type[Self]:
        """The class that these settings name."""
        return cls.registry[str(settings.get(cls.naming, cls.usual)).partition(":")[0]]

    @classmethod
    def of(cls, **settings: Any) -> Self:
        """A value of the class that these settings name."""
        return cls.model_validate(settings)

    def said(self) -> dict[str, Any]:
        """What it is and what is not the default: another class has defaults of its own."""
        return {self.naming: getattr(self, self.naming), **self.model_dump(exclude_defaults=True)}

    @model_validator(mode="wrap")
    @classmethod
    def _of_the_named_class(cls, values: Any, build: ModelWrapValidatorHandler[Self]) -> Self:
        if Open in cls.__bases__ and isinstance(values, Mapping):
            return cls.named(values).model_validate(values)
        return build(values)
