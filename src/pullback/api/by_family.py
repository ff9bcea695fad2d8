"""Descriptors and plans that go by the name of a family, made from :mod:`pullback.core.families`.

Each says in fields of its own what :class:`Descriptor` says of any op, and runs as :class:`Plan`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import field, fields, make_dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

from ..core import parse
from ..core.catalog import find, kinds
from ..core.declare import REQUIRED, Op, Parameter, Role
from ..core.families import FACES, KNOWN_AS, Face
from ..core.problem import Problem
from ..core.vocabulary import ElementKind, element_kind, parse_enum
from .descriptors import Descriptor, in_one_form, parameters_of
from .plan import Plan

# What a field may be beside a parameter: how it is typed and described.
_SIZES = {
    "shape": ("tuple of int", "Shape of the full-size operands."),
    "rows": ("int", "Number of rows."),
    "columns": ("int", "Length of a row."),
    "segments": ("int", "Number of segments."),
    "element": ("ElementKind, str or dtype", "Element type."),
}


class FamilyDescriptor(Descriptor):
    """A descriptor whose fields a row of :data:`FACES` names.

    ``means`` says what each field is; ``known`` are the parameters of the face's ops. One that an
    op does not have is parsed and ignored.
    """

    face: ClassVar[Face]
    direction: ClassVar[str]
    means: ClassVar[Mapping[str, str]]
    known: ClassVar[Mapping[str, Parameter]]

    def __post_init__(self) -> None:
        face, called = self.face, {meaning: name for name, meaning in self.means.items()}
        held = {meaning: getattr(self, name) for name, meaning in self.means.items()}
        kind = _kind(face, held.pop("kind", face.kind))
        op = find(KNOWN_AS.get(kind, str(kind)), self.direction)
        element = element_kind(held.pop("element"))
        if "rows" in held:
            for size in ("rows", "columns", "segments"):
                held[size] = parse.count(held[size], called[size])
                self._put(**{called[size]: held[size]})
            held["shape"] = (held.pop("rows"), held.pop("columns"))
            called["shape"] = f"{called['rows']} x {called['columns']}"
            called["segments"] = f"{called['segments']} x {called['columns']}"
        shape, segments = held.pop("shape"), held.pop("segments", None)
        # A field at None by default leaves it to the op.
        said = {n: v for n, v in held.items() if v is not None or self.known[n].default is not None}
        own = {n: v for n, v in {**said, **face.fixed}.items() if n in parameters_of(op)}
        self._settle(op, shape, element, segments, own, called)
        self._put(kind=kind)
        if called["shape"] in self.means:
            self._put(**{called["shape"]: self.shape})
        for name in [n for n in held if n in said or n in self.parameters]:
            p, what = self.known[name], called[name]
            value = self.parameters.get(name, said.get(name))
            value = in_one_form(p, value, len(self.shape), what)
            self._put(**{what: p.kind.words(value) if p.kind.words else value})

    def _arguments(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def ops(cls) -> list[Op]:
        """The ops that a descriptor of this class may be of."""
        return cls.face.ops(cls.direction)

    def _shape(self, role: Role) -> tuple[int, ...]:
        whole = Problem(self.op, self.element.value, self.shape, self.axes, segments=self.segments)
        if role is Role.ROW:
            return whole.row_shape
        return self.shape if role is Role.ELEMENT else self.shape[:1]


def _kind(face: Face, value: object) -> Any:
    """An enum member; or the plain name of a kind that the catalog has beyond the enum's."""
    if type(value) is str and value in kinds(face.family):
        # A kind registered at run time has no member and stands for itself.
        return face.kinds._value2member_map_.get(value, value)
    return parse_enum(face.kinds, value, "kind")


def _descriptor(face: Face, direction: str) -> type[FamilyDescriptor]:
    """The descriptor of a face and a direction."""
    known: dict[str, Parameter] = {}
    for op in face.ops(direction):
        for name, p in parameters_of(op).items():
            first = known.setdefault(name, p)
            if first.default != p.default:
                known[name] = replace(first, default=None)
    means = {f: m for f, m in face.fields.items() if m in ("kind", *_SIZES) or m in known}
    places: list[tuple[str, object, Any]] = []
    is_required = False
    for name, meaning in reversed(means.items()):
        default = _default(known[meaning]) if meaning in known else REQUIRED
        default = ElementKind.F32 if meaning == "element" else default
        # Nothing in front of a field that must be given can be left out.
        is_required = is_required or default is REQUIRED
        places.insert(0, (name, Any, field() if is_required else field(default=default)))
    for name in [n for n in known if n not in (*means.values(), *face.fixed)]:
        places.append((name, Any, field(default=_default(known[name]), kw_only=True)))
        means[name] = name
    always = frozenset(n for n, p in known.items() if n in means.values() and p.default is REQUIRED)
    held: dict[str, Any] = {"face": face, "direction": direction, "always": always}
    held |= {"means": MappingProxyType(means), "known": MappingProxyType(known)}
    held |= {name: _shape_method(name, role) for name, role in face.shapes.items()}
    if face.kind:
        held["kind"] = face.kinds(face.kind)
    name = f"{face.stem}{'' if direction == 'forward' else 'Backward'}Descriptor"
    made: type[FamilyDescriptor] = make_dataclass(
        name, places, bases=(FamilyDescriptor,), namespace=held, frozen=True, eq=False
    )
    made.__module__, made.__doc__ = __name__, _docstring(made)
    return made


def _default(parameter: Parameter) -> Any:
    words, default = parameter.kind.words, parameter.default
    return default if words is None or default is None else words(default)


def _shape_method(name: str, role: Role) -> Any:
    def shape(self: FamilyDescriptor) -> tuple[int, ...]:
        return self._shape(role)

    shape.__name__ = name
    shape.__doc__ = f"Shape of the operands whose role is {role.value!r}."
    return shape


def _docstring(cls: type[FamilyDescriptor]) -> str:
    face = cls.face
    text = "A" if cls.direction == "forward" else "The backward of a"
    lines = [f"{text} {face.text}.", "", "Parameters", "----------"]
    for name, meaning in cls.means.items():
        if meaning in cls.known:
            p = cls.known[meaning]
            hint, doc = (f"{p.kind.words.__name__} or str" if p.kind.words else p.kind.hint), p.doc
            hint += "" if p.default is REQUIRED else f", default {p.default!r}"
        elif meaning == "kind":
            listed = dict.fromkeys(op.kind for op in cls.ops())
            hint, doc = f"{face.kinds.__name__} or str", f"{', '.join(listed)}."
        else:
            hint, doc = _SIZES[meaning]
        lines.append(f"{name} : {hint}")
        lines += textwrap.wrap(doc, 92, initial_indent="    ", subsequent_indent="    ")
    if face.example and cls.direction == "forward":
        lines += ["", "Examples", "--------", f">>> {face.example[0]}", face.example[1]]
    return "\n".join(lines) + "\n"


def _plan(described: type[FamilyDescriptor]) -> type[Plan]:
    """The plan of a descriptor."""
    name = described.__name__.replace("Descriptor", "Plan")
    text = f"{(described.__doc__ or '').splitlines()[0]}\n\nSee :class:`{described.__name__}`."
    return type(name, (Plan,), {"Descriptor": described, "__doc__": text, "__module__": __name__})


def _descriptors() -> Iterator[type[FamilyDescriptor]]:
    for face in FACES:
        for direction in ("forward", "backward"):
            yield _descriptor(face, direction)


DESCRIPTORS = {made.__name__: made for made in _descriptors()}
PLANS = {made.__name__: made for made in map(_plan, DESCRIPTORS.values())}
# Where pickle finds them.
globals().update(DESCRIPTORS | PLANS)
