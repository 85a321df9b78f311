"""A verb of the command line, read off a function: what a parameter is called, takes and means is said in its signature.

A positional parameter is an argument, a keyword one is an option, and one without `Help` is not on the command line. A value
that groups several parameters (`Measuring`) is an option for each of its fields.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import click

from kerncast.app.cli import completing
from kerncast.app.cli.completing import LOOKED_UP, store_of_model
from kerncast.core.io.arguments import Help
from kerncast.errors import BadFile, InvalidValue

_ARGUMENT = re.compile(r"`([a-z][a-z0-9_]*)(?:=([^`]*))?`")


def in_options(text: str, command: click.Command | None) -> str:
    """Replace arguments in backticks by the command's options; anything that is not one of its options stays."""
    # `get_params`, because a command may add options, as `train` does for the knobs of every kind of model.
    params = [] if command is None else command.get_params(click.Context(command))
    known = {str(item.name): max(item.opts, key=len) for item in params if isinstance(item, click.Option)}

    def said(found: re.Match[str]) -> str:
        name, value = found[1], found[2]
        if name not in known:
            return found[0]
        option = known[name]
        return option if value in (None, "True", "False") else f"{option} {value}"

    return _ARGUMENT.sub(said, text)


def called(program: click.Group, args: Sequence[str]) -> click.Command | None:
    """The command that a command line names, or None."""
    found: click.Command | None = program
    for word in args:
        if not isinstance(found, click.Group) or word.startswith("-"):
            break
        inner = found.get_command(click.Context(found), word)
        if inner is None:
            break
        found = inner
    return None if found is program else found


class _Numbers(click.ParamType):  # type: ignore[type-arg]
    """Comma-separated numbers."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return tuple(float(part) if "." in part else int(part) for part in value.split(","))
        except ValueError as error:
            name = param.opts[0] if param is not None else "it"
            raise InvalidValue(f"{name} is a list of numbers such as 100,50, got '{value}'") from error


_TYPES: dict[str, Any] = {"whole": int, "number": float, "flag": bool, "list": _Numbers(), "text": str}


def learner_options() -> list[click.Option]:
    """An option for each knob of any learner."""
    from kerncast.learning.learners.kinds import Knob, knobs_of, learner_class, learner_kinds

    known: dict[str, list[tuple[str, Knob]]] = {}
    for kind in learner_kinds():
        try:
            knobs = knobs_of(learner_class(kind).options_type)
        except BadFile:  # another package is broken: training its kind of model reports that
            continue
        for knob in knobs:
            known.setdefault(knob.name, []).append((kind, knob))
    options = []
    for name, owners in known.items():
        shapes = {knob.shape for _, knob in owners}
        # If learners give one name different types, the option is text, and `converted_knobs` converts it.
        shape = shapes.pop() if len(shapes) == 1 else "text"
        kinds: dict[str, list[str]] = {}
        for kind, knob in owners:
            kinds.setdefault(knob.doc, []).append(kind)
        told = "; ".join(f"{', '.join(own)}: {doc}" if doc else ", ".join(own) for doc, own in kinds.items())
        metavar = {"list": "SIZES", "text": "NAME"}.get(shape)
        flag = f"--{name.replace('_', '-')}"
        options.append(click.Option([flag, name], type=_TYPES[shape], default=None, metavar=metavar, help=f"{told}."))
    return options


def converted_knobs(kind: str, options: dict[str, Any]) -> dict[str, Any]:
    """The given knobs, converted to the types that this kind of model declares."""
    from kerncast.learning.learners.kinds import knobs_of, learner_class

    shapes = {knob.name: knob.shape for knob in knobs_of(learner_class(kind).options_type)}
    found = {}
    for name, value in options.items():
        shape = shapes.get(name, "text")
        if isinstance(value, str) and shape != "text":
            value = click.types.convert_type(_TYPES[shape])(value)
        if value is not None:
            found[name] = value
    return found


# Types of which a command line may name several.
SEVERAL = (Sequence, Iterable, Mapping, list, tuple)


class VerbCall:
    """A public function, and what the command line gives for its parameters: `call["out"]`, `call(progress=show)`."""

    def __init__(
        self, function: Callable[..., Any], given: dict[str, Any], knobs: dict[str, Any], names: Collection[str]
    ) -> None:
        self._function, self._given, self.knobs = function, given, knobs
        self._names = names

    def __getitem__(self, name: str) -> Any:
        return self._given[name]

    def refuse_given(self, why: str, *allowed: str) -> None:
        """Refuse the first option that is given and is not `allowed`: another use of the verb does not take it."""
        context = click.get_current_context()
        params = {item.name: max(item.opts, key=len) for item in context.command.get_params(context)}
        for name in (*self._names, *self.knobs):
            source = context.get_parameter_source(name)
            if name not in allowed and source is click.core.ParameterSource.COMMANDLINE:
                option = params[name]
                raise InvalidValue(f"{option} {why}: leave it out")

    def __call__(self, **more: Any) -> Any:
        return self._function(**(self._given | more))


class Verb(click.Command):
    """A command with an option for each knob, too; knobs are looked up when the command is asked, not on import."""

    def __init__(self, name: str, *, knobs: Callable[[], list[click.Option]] | None = None, **options: Any) -> None:
        super().__init__(name, **options)
        self.knobs = knobs

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        own = super().get_params(ctx)
        taken = {item.name for item in own}
        more = [] if self.knobs is None else [item for item in self.knobs() if item.name not in taken]
        return [*own[:-1], *more, *own[-1:]]  # --help stays last


def verb(
    name: str, function: Callable[..., Any] | None = None, *, knobs: Callable[[], list[click.Option]] | None = None
) -> Callable[[Callable[..., None]], Verb]:
    """The verb of a public function. What is decorated gets a `VerbCall` of it and shows the result, as options of its own say.

    Without a function, the decorated one has all parameters itself.
    """

    def made(show: Callable[..., None]) -> Verb:
        called = [] if function is None else list(_declared(function))
        shown = list(_declared(show))
        own, names, every = {item.name for item in shown}, {item.name for item in called}, [*called, *shown]

        def run(**given: Any) -> None:
            given |= {item.name: item.default for item in every if given[item.name] == () and item.default is None}
            rest = _grouped(shown, {key: given.pop(key) for key in list(given) if key in own})
            if function is None:
                show(**rest)
            else:
                knobs = {key: given.pop(key) for key in list(given) if key not in names}
                show(VerbCall(function, _grouped(called, given), knobs, names), **rest)

        run.__doc__ = show.__doc__
        params = [item.parameter() for item in sorted(every, key=lambda item: not item.positional)]
        if any(item.help.names in LOOKED_UP for item in every):
            params.insert(-1, store_of_model())
        command = Verb(name, params=params, callback=run, help=inspect.getdoc(show), knobs=knobs)
        for item in params:
            if isinstance(item, click.Option) and item.help is not None:
                item.help = in_options(item.help, command)
        return command

    return made


class VerbGroup(click.Group):
    """A verb with verbs of its own."""

    def verb(self, name: str, function: Callable[..., Any] | None = None) -> Callable[[Callable[..., None]], Verb]:
        """As `verb`, for a verb of this one."""

        def made(show: Callable[..., None]) -> Verb:
            command = verb(name, function)(show)
            self.add_command(command)
            return command

        return made


def group(name: str, *, kind: type[VerbGroup] = VerbGroup) -> Callable[[Callable[..., None]], VerbGroup]:
    """A verb with verbs of its own. What is decorated is called if none of them is named, and has options for that."""

    def made(show: Callable[..., None]) -> VerbGroup:
        params = [item.parameter() for item in _declared(show)]

        def run(**given: Any) -> None:
            named = click.get_current_context().invoked_subcommand
            if named is None:
                show(**given)
            elif any(given.values()):
                raise InvalidValue(f"options of `kerncast {name} {named}` come after its name: move them there")

        return kind(name, params=params, callback=run, help=inspect.getdoc(show), invoke_without_command=bool(params))

    return made


@dataclass(frozen=True)
class Declared:
    """A parameter of a function that the command line has, or a field of a value that groups some."""

    name: str
    kind: Any
    default: Any
    help: Help
    positional: bool = False
    group: tuple[str, type] | None = None
    """The parameter whose field it is, and the class of that."""

    @property
    def members(self) -> list[Any]:
        """The types that it may have, without None."""
        return [item for item in _members(self.kind) if item is not type(None)]

    @property
    def several(self) -> bool:
        return self.help.several if self.help.several is not None else any(get_origin(item) in SEVERAL for item in self.members)

    @property
    def type(self) -> Any:
        """What click converts it to; texts are left to the function, which takes them."""
        if self.help.names in LOOKED_UP:
            return LOOKED_UP[self.help.names]
        choices = self.help.choices or next((get_args(item) for item in self.members if get_origin(item) is Literal), ())
        if choices:
            return click.Choice(choices)
        with_items = [*self.members, *(one for item in self.members for one in get_args(item))]
        if str not in self.members and Path in with_items:
            return click.Path(path_type=Path)
        if str in self.members or self.several:
            return str
        least = self.help.least
        if int in self.members:
            return int if least is None else click.IntRange(min=int(least))
        return str if float not in self.members else float if least is None else click.FloatRange(min=least)

    def parameter(self) -> click.Parameter:
        """The argument or the option."""
        told = self.help
        complete = None if told.names is None else getattr(completing, told.names, None)
        if self.positional:
            return click.Argument(
                [self.name], metavar=told.metavar, type=self.type, nargs=-1 if self.several else 1,
                required=told.required or self.default is inspect.Parameter.empty, shell_complete=complete,
            )  # fmt: skip
        common: dict[str, Any] = {"help": told.text or None}
        if self.members == [bool]:
            flag = told.option or f"--{'no-' if self.default else ''}{self.name.replace('_', '-')}"
            if self.default:
                common["callback"] = lambda context, option, value: not value
            return click.Option([flag, self.name], is_flag=True, **common)
        if told.alone is not None:
            common |= {"is_flag": False, "flag_value": told.alone}
        if told.above is not None:
            common["callback"] = self._refuse_low
        if self.default not in (None, "", (), MISSING, inspect.Parameter.empty):
            common |= {"default": self.default, "show_default": "[default" not in told.text}
        return click.Option(
            [told.option or f"--{self.name.replace('_', '-')}", self.name], type=self.type, multiple=self.several,
            metavar=told.metavar, required=told.required, shell_complete=complete, **common,
        )  # fmt: skip

    def _refuse_low(self, context: click.Context, option: click.Parameter, value: float | None) -> float | None:
        """Refuse a value that is not above the limit; NaN is refused too."""
        if value is not None and self.help.above is not None and not value > self.help.above:
            raise InvalidValue(f"{option.opts[0]} must be a number above {self.help.above:g}, got {value:g}")
        return value


def target_options() -> list[click.Option]:
    """An option for each option of any target of `export`, without a default: which one it is depends on the target."""
    from kerncast.answering.exporters import exporters
    from kerncast.app.api.export import PORTFOLIO, PortfolioOptions

    found: dict[str, tuple[Declared, dict[str, list[str]]]] = {}
    for target, kind in {
        **{name: item.options_type for name, item in exporters().items()},
        PORTFOLIO: PortfolioOptions,
    }.items():
        for item in _fields(kind):
            _, texts = found.setdefault(item.name, (item, {}))
            texts.setdefault(item.help.text, []).append(target)
    options = []
    for item, texts in found.values():
        told = "; ".join(f"with {', '.join(targets)}: {text.rstrip('.')}" for text, targets in texts.items())
        option = replace(
            item, default=None, help=replace(item.help, text=told[:1].upper() + told[1:] + ("" if told.endswith("]") else "."))
        ).parameter()
        assert isinstance(option, click.Option)
        options.append(option)
    return options


def _fields(kind: type) -> Iterator[Declared]:
    """The fields of a dataclass that are on the command line."""
    kinds = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        if (told := _help(kinds[field.name])) is not None:
            yield Declared(field.name, kinds[field.name], field.default, told)


def _declared(function: Callable[..., Any]) -> Iterator[Declared]:
    hints = get_type_hints(function, include_extras=True)
    for name, item in inspect.signature(function).parameters.items():
        if item.kind is item.VAR_KEYWORD or name not in hints:
            continue
        group = next((one for one in _members(hints[name]) if is_dataclass(one)), None)
        if (told := _help(hints[name])) is not None:
            yield Declared(name, hints[name], item.default, told, item.kind is not item.KEYWORD_ONLY)
        elif isinstance(group, type):
            yield from (replace(field, group=(name, group)) for field in _fields(group))


def _grouped(declared: Sequence[Declared], given: dict[str, Any]) -> dict[str, Any]:
    """The values of the parameters, of which some are values that group several."""
    groups: dict[str, dict[str, Any]] = {}
    classes: dict[str, type] = {}
    for item in declared:
        if item.group is not None:
            name, classes[name] = item.group[0], item.group[1]
            groups.setdefault(name, {})[item.name] = given.pop(item.name)
    return given | {name: classes[name](**values) for name, values in groups.items()}


def _members(kind: Any) -> list[Any]:
    origin = get_origin(kind)
    if origin is Annotated:
        return _members(get_args(kind)[0])
    return [one for item in get_args(kind) for one in _members(item)] if origin in (Union, UnionType) else [kind]


def _help(kind: Any) -> Help | None:
    """The last `Help`, with the text before it if there is one: a function may have another text than an alias that it uses."""
    metadata = getattr(kind, "__metadata__", ())
    place = max((number for number, item in enumerate(metadata) if isinstance(item, Help)), default=None)
    if place is None:
        return None
    told: Help = metadata[place]
    return replace(told, text=metadata[place - 1]) if place and isinstance(metadata[place - 1], str) else told
