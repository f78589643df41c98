"""Options that typer does not hand to pydantic: to import it and to prepare every option takes 0.1 s.

Since version 0.29 typer converts values by pydantic, those that are not given too.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup, TyperOption


class QuickOption(TyperOption):
    """An option that converts a value of text, or none, to what typer would, without pydantic."""

    def process_value(self, ctx: Any, value: Any) -> Any:
        described: Any = getattr(self, "type_descriptor", None)  # only typers that use pydantic have it
        if described is None or self.required:
            return super().process_value(ctx, value)
        if value is None:
            converted: Any = () if self.multiple else None
        elif described.annotation in (str, list[str]):
            parse = described.parameter_info.parser or str
            try:
                converted = [parse(one) for one in value] if self.multiple else parse(value)
            except (ValueError, AssertionError):  # which pydantic puts into words
                return super().process_value(ctx, value)
        else:
            return super().process_value(ctx, value)
        return converted if self.callback is None else self.callback(ctx, self, converted)


class _Quick:
    """A command or group with such options. Typer has no setting for their class, so it is changed afterwards."""

    def __init__(self, *arguments: Any, **settings: Any):
        super().__init__(*arguments, **settings)
        self.params: list[Any] = [quick(one) for one in self.params]

    def get_help_option(self, ctx: Any) -> Any:
        return quick(super().get_help_option(ctx))  # type: ignore[misc]


class QuickCommand(_Quick, TyperCommand):
    pass


class QuickGroup(_Quick, TyperGroup):
    pass


def quick(parameter: Any) -> Any:
    """Change the class of an option of typer's; returns it. Other parameters stay as they are."""
    if type(parameter) is TyperOption:
        parameter.__class__ = QuickOption
    return parameter
