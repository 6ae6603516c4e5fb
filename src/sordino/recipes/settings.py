"""Declaration of settings: checks, TOML keys, command-line options and a JSON schema from one dataclass field.

A dataclass declares each setting with `setting`, with a type from here and a help text. `sordino.cli.options` makes the
options. This module does not import torch, so that a command shows its help quickly.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from typing import Annotated, Any, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model

from sordino._input import validate
from sordino.accounting.adjacency import Adjacency
from sordino.errors import UsageError

NameOf = Callable[[str], str]
_DECLARED: dict[type, dict[str, DeclaredSetting]] = {}  # cached, because every command and every recipe needs them
_MODELS: dict[type, type[BaseModel]] = {}


def encodable(text: str) -> str:
    """Checks that a string can be written to a TOML file and be a file name."""
    if not text or "\0" in text or text.encode(errors="replace").decode() != text:
        raise ValueError("a non-empty UTF-8 string without NUL")
    return text


Text = Annotated[str, AfterValidator(encodable)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]


class NamedInFile(str):
    """Name of code, `MODULE:FUNCTION`, that was read from a file. Only a name that the user gave is imported."""


def names_code(name: str | None) -> bool:
    """Whether a model or loss is named as `MODULE:FUNCTION`, which has to be imported.

    >>> names_code("nets.py:network"), names_code("linear"), names_code("timm:resnet18"), names_code("hf:models/bert")
    (True, False, False, False)
    """
    kind, colon, _ = (name or "").partition(":")
    return bool(colon) and kind not in ("timm", "hf")


class SamplerName(StrEnum):
    """Names of samplers, as in `Sampler.name`."""

    POISSON = "poisson"
    TRUNCATED_POISSON = "truncated-poisson"
    BALLS_IN_BINS = "balls-in-bins"
    SHUFFLED = "shuffled"
    CYCLIC = "cyclic"
    FIXED_SIZE = "fixed-size"


class MethodName(StrEnum):
    """Names of training methods."""

    DP_SGD = "dp-sgd"
    NOISY_CGD = "noisy-cgd"


# strict=False: an enumeration may be given as a string, as in a file or on the command line.
SamplerByName = Annotated[SamplerName, Field(strict=False)]
MethodByName = Annotated[MethodName, Field(strict=False)]
AdjacencyByName = Annotated[Adjacency, Field(strict=False)]


@dataclass(frozen=True)
class Only:
    """The values of a setting that a method allows, and the reason. None means that it may be left open."""

    values: tuple[object, ...]
    reason: str


@dataclass(frozen=True)
class Setting:
    """Declaration of a setting, apart from its name, type and default.

    `key` is its name in TOML files and an older name of its option. `commands` maps each command with an option for it
    to the help text. `only` maps methods that restrict it to the allowed values. `stage` puts the value into a plan: a
    function of the plan, the value, which is not None, and the prepared recipe.
    """

    help: str
    key: str | None
    commands: Mapping[str, str]
    only: Mapping[str, Only]
    stage: Callable[[Any, Any, Any], Any] | None = None


def setting(
    default: Any = MISSING,
    help: str = "",
    *,
    key: str | None = None,
    commands: tuple[str, ...] = ("train",),
    only: Mapping[str, Only] | None = None,
    stage: Callable[[Any, Any, Any], Any] | None = None,
    **other_help: str,
) -> Any:
    """Declares a setting as a field of a dataclass. `tune="..."` is another help text, for `sordino tune`.

    >>> @dataclass
    ... class Settings:
    ...     rate: Positive = setting(1.0, "Learning rate.", key="lr", tune="Learning rate of each trial.")
    >>> declared(Settings)["rate"].help_for("tune")
    'Learning rate of each trial.'
    """
    texts = dict.fromkeys(commands, help) | other_help
    return dataclasses.field(default=default, metadata={"setting": Setting(help, key, texts, only or {}, stage)})


@dataclass(frozen=True)
class DeclaredSetting:
    """One setting of a dataclass, with its declaration and JSON schema."""

    name: str
    setting: Setting
    default: Any
    is_required: bool
    schema: Mapping[str, Any]

    @property
    def key(self) -> str:
        """The name in a TOML file."""
        return self.setting.key or self.name

    @property
    def options(self) -> tuple[str, ...]:
        """The names on the command line, the preferred one first."""
        return tuple(dict.fromkeys(option_of(each) for each in (self.name, self.key)))

    @property
    def kind(self) -> str:
        """The JSON type of the values: number, integer, string or boolean."""
        return str(self.schema.get("type", "string"))

    def help_for(self, command: str) -> str | None:
        """The help text in a command, or None if the command has no option for the setting."""
        return self.setting.commands.get(command)

    @property
    def requirement(self) -> str:
        """Description of the allowed values, for a message."""
        schema = self.schema
        if "enum" in schema:
            return f"one of {', '.join(schema['enum'])}"
        if self.kind == "integer":
            return f"a whole number from {schema['minimum']} to {schema['maximum']}"
        if self.kind == "number":
            low = schema.get("minimum", schema.get("exclusiveMinimum"))
            high = schema.get("maximum", schema.get("exclusiveMaximum"))
            if high is None:
                return f"a finite number above {low:g}"
            return f"in {'[' if 'minimum' in schema else '('}{low:g}, {high:g}{']' if 'maximum' in schema else ')'}"
        return "true or false" if self.kind == "boolean" else "a string"


class SettingError(UsageError):
    """A setting is wrong. Names of settings in braces are replaced by those the reader knows (option, key or argument).

    >>> error = SettingError("{batch_size} must be below {most}, got {given}.", most=10, given=12)
    >>> str(error), str(error.named(option_of))
    ('batch_size must be below 10, got 12.', '--batch-size must be below 10, got 12.')
    """

    def __init__(self, template: str, **values: object) -> None:
        self.template, self.values = template, values
        super().__init__(str(self.named(str)))

    def named(self, name_of: NameOf) -> UsageError:
        """A copy of the error in which settings are named by `name_of`."""
        return UsageError(self.template.format_map(_TemplateValues(name_of, self.values)))


class _TemplateValues(dict[str, object]):
    def __init__(self, name_of: NameOf, values: Mapping[str, object]) -> None:
        super().__init__(values)
        self._name_of = name_of

    def __missing__(self, name: str) -> str:
        return self._name_of(name)


def option_of(name: str) -> str:
    """The option of a Python argument: `batch_size` becomes `--batch-size`."""
    return "--" + name.replace("_", "-")


def renamed(error: UsageError, name_of: NameOf) -> UsageError:
    """A copy of the error with settings named by `name_of`: all in a `SettingError`, the first word in other errors.

    >>> str(renamed(UsageError("batch_size must be at most 3, got 4."), option_of))
    '--batch-size must be at most 3, got 4.'
    """
    if isinstance(error, SettingError):
        return error.named(name_of)
    name, must, rest = str(error).partition(" must be ")
    return UsageError(name_of(name) + must + rest) if must and name.isidentifier() else error


def declared(kind: type) -> dict[str, DeclaredSetting]:
    """Settings of a dataclass by name, in order."""
    if kind not in _DECLARED:
        schemas = json_schema(kind)["properties"]
        _DECLARED[kind] = {
            field.name: DeclaredSetting(
                field.name,
                field.metadata["setting"],
                None if field.default is MISSING else field.default,
                field.default is MISSING,
                _not_null(schemas[field.metadata["setting"].key or field.name]),
            )
            for field in _fields(kind)
        }
    return _DECLARED[kind]


def checked(settings: Any) -> dict[str, Any]:
    """Checks the values of a dataclass of settings against their types. Raises for the first wrong one."""
    by_name = declared(type(settings))
    given = {name: getattr(settings, name) for name in by_name}
    try:
        found = _model(type(settings)).model_validate({each.key: given[name] for name, each in by_name.items()})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        (wrong,) = (each for each in by_name.values() if each.key == first["loc"][0])
        raise _refusal(wrong, first) from None
    # Numbers stay as given: 3 does not become 3.0, because values are compared by their strings elsewhere.
    chosen = {name: value for name in given if isinstance(value := getattr(found, _attribute(name)), StrEnum)}
    return given | chosen


def checked_one(kind: type, name: str, value: Any) -> Any:
    """Checks a value for one setting of a dataclass against its type."""
    hint = get_type_hints(kind, include_extras=True)[name]
    try:
        found = TypeAdapter(hint, config=ConfigDict(strict=True)).validate_python(value)
    except ValidationError as error:
        raise _refusal(declared(kind)[name], error.errors(include_url=False)[0]) from None
    return found if isinstance(found, StrEnum) else value


def json_schema(kind: type) -> dict[str, Any]:
    """JSON schema of the TOML files with these settings."""
    schema = _model(kind).model_json_schema(by_alias=True)
    known = schema.pop("$defs", {})
    schema["properties"] = {key: _resolved(entry, known) for key, entry in schema["properties"].items()}
    return schema


def _model(kind: type) -> type[BaseModel]:
    """Pydantic model with the fields of a dataclass. Strict: strings and booleans are not accepted as numbers."""
    if kind not in _MODELS:
        hints = get_type_hints(kind, include_extras=True)
        described: dict[str, Any] = {}
        for field in _fields(kind):
            about: Setting = field.metadata["setting"]
            default: Any = ... if field.default is MISSING else field.default
            entry = Field(default, description=about.help, alias=about.key or field.name, title=field.name)
            described[_attribute(field.name)] = (hints[field.name], entry)
        _MODELS[kind] = create_model(kind.__name__, __config__=ConfigDict(strict=True, extra="forbid"), **described)
    return _MODELS[kind]


def _fields(kind: Any) -> tuple[dataclasses.Field[Any], ...]:
    """The fields of a dataclass. Those that are passed by keyword only, as those of a base, come last."""
    return tuple(sorted(fields(kind), key=lambda field: field.kw_only is True))


def _attribute(name: str) -> str:
    return f"its_{name}"  # a prefix, because pydantic models have attributes such as `schema`


def _refusal(wrong: DeclaredSetting, error: Any) -> SettingError:
    """The error for a wrong value. A string is shown if the setting has a few allowed values or a check of its own."""
    if error["type"] == "value_error":
        requirement, given = error["ctx"]["error"], validate.option(error["input"])
    else:
        shown = validate.option if "enum" in wrong.schema else validate.shown
        requirement, given = wrong.requirement, shown(error["input"])
    return SettingError(
        f"{{{wrong.name}}} must be {{requirement}}, got {{given}}.", requirement=requirement, given=given
    )


def _resolved(entry: dict[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """A schema entry with its references replaced by their definitions."""
    if "$ref" in entry:
        rest = {name: value for name, value in entry.items() if name != "$ref"}
        return {**known[entry["$ref"].rpartition("/")[2]], **rest}
    if "anyOf" in entry:
        return entry | {"anyOf": [_resolved(each, known) for each in entry["anyOf"]]}
    return entry


def _not_null(entry: dict[str, Any]) -> dict[str, Any]:
    return next((each for each in entry.get("anyOf", ()) if each.get("type") != "null"), entry)


def one_of(names: Callable[[], tuple[str, ...]], *patterns: str) -> AfterValidator:
    """A check that a string is one of `names()`, which is called when a value is checked, or like a pattern A:B."""

    def check(text: str) -> str:
        if not (patterns and all(text.rpartition(":"))) and text not in names():
            raise ValueError(f"one of {', '.join((*names(), *patterns))}")
        return text

    return AfterValidator(check)
