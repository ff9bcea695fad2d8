"""Which path a call takes: the cheapest one that is right where it stands.

===================================  ===========================================================
context                              path
===================================  ===========================================================
plain CPU tensors, no gradient       a launch
plain CPU tensors, gradient wanted   ``Direct``, an old-style autograd.Function (6 µs, not 20)
torch.func, second derivatives       ``Composable`` and ``ComposableBackward``: kernels, with a
                                     rule for vmap
compile, export, fake, meta, modes   the ops registered in :mod:`.library`
forward mode, torch.func inside      torch's own function (:mod:`.counterparts`), or the catalog's
compile, tensor subclasses, dtypes   formula in torch ops. There a custom Function's rules are
beyond the four                      ignored, its jvp gives wrong second derivatives, or memory is
                                     not what it seems
torch.jit.trace, sparse, nested      none: refused
===================================  ===========================================================
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch._C import _are_functorch_transforms_active as transforms_active
from torch._C import _is_tracing as is_tracing
from torch._C import _len_torch_dispatch_stack as dispatch_modes
from torch._C._functorch import (
    TransformType,
    get_interpreter_stack,
    get_unwrapped,
    is_functorch_wrapped_tensor,
    is_gradtrackingtensor,
    unwrap_if_dead,
)
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import Function
from torch.compiler import is_compiling

from ..core.declare import Role, Type
from ..core.pair import Pair, pair_of
from ..errors import UnsupportedError
from .arrays import ELEMENTS
from .autograd import backward_rules, forward_rules, make_composable, make_direct, make_whole
from .counterparts import COUNTERPARTS
from .forms import Form, Parameters, as_tuple, unpacked
from .graphs import are_whole, constant, whole
from .launches import PLAIN, Launcher, check_dense
from .library import define
from .paths import Path, backward_form
from .shards import give_rules, is_sharded
from .written import make_call

_MOST_KNOWN = 512
_WITHOUT_MEMORY = (FakeTensor, FunctionalTensor)

Names = tuple[str, ...]


def _is_plain(t: Tensor) -> bool:
    return type(t) in PLAIN and t.is_cpu


def _functionalizes() -> bool:
    """Whether torch.func.functionalize is among the active transforms; it refuses a Function."""
    stack = get_interpreter_stack() or ()
    return any(level.key() == TransformType.Functionalize for level in stack)


def _varies(t: Tensor) -> bool:
    """Whether a gradient by a tensor is wanted, at any level of torch.func."""
    if is_compiling():
        return t.requires_grad
    while is_functorch_wrapped_tensor(t):
        if is_gradtrackingtensor(t):
            return True
        t = get_unwrapped(t)
    return t.requires_grad


class Kind:
    """One kind of the catalog: what its operations share.

    Attributes
    ----------
    usual
        Names of operands that may be left out and are there in the plainest call: the ids, of an op
        that rows are cut for by ids or by offsets.
    cuts
        Names of operands that cut rows into segments, one of which is there.
    marks
        Offsets that stand for another operand: a mask of where runs begin.
    flags
        Parameters that ask for outputs.
    beyond
        Parameters that torch's function does not have, with their defaults.
    """

    def __init__(self, pair: Pair, edition: int) -> None:
        self.pair, self.edition = pair, edition
        self.kind = pair.forward.kind
        self.counterpart = COUNTERPARTS.get(self.kind)
        self.name = (self.counterpart and self.counterpart.name) or self.kind
        forward = pair.forward
        optional = [o for o in forward.reads if o.optional]
        self.usual: Names = tuple(o.name for o in optional if o.role is Role.IDS)
        cuts = [o for o in forward.reads if o.role in (Role.IDS, Role.OFFSETS)]
        self.cuts: Names = tuple(o.name for o in cuts if o.symbol == o.name)
        self.marks = next((o for o in cuts if o.symbol != o.name), None)
        asking = {o.asked_by for o in forward.writes}
        self.flags: Names = tuple(p.name for p in pair.parameters if p.name in asking)
        self.operations: dict[tuple[Names, Names], Operation] = {}
        self.function: Callable[..., Any] | None = None
        takes = ("ties", *self.counterpart.takes) if self.counterpart else ()
        self.beyond = {p.name: p.default for p in pair.parameters if p.name not in takes}

    @property
    def plain(self) -> Operation:
        """The operation with nothing that may be left out."""
        return self.operation(self.usual, ())

    def ordered(self, given: Collection[str]) -> Names:
        """Names of operands in the order of the row."""
        return tuple(n for n in self.pair.forward.optional if n in given)

    def operation(self, given: Names, asked: Names) -> Operation:
        """The operation with those operands that may be left out, and flags that are True."""
        if is_compiling():
            held: Operation = getattr(self, attribute_of(self.kind, self.edition, given, asked))
            return held
        found = self.operations.get((given, asked))
        return found or make_operation(self.kind, self.edition, given, asked)


_lock = threading.RLock()
_editions: dict[str, list[Kind]] = {}


def kind_of(kind: str) -> Kind:
    """What is known of a kind, made when it is first asked for."""
    with _lock:
        editions = _editions.setdefault(kind, [])
        # A kind may be taken out of the catalog and put back with another formula; torch forgets
        # none.
        pair = pair_of(kind)
        for made in editions:
            if made.pair == pair:
                return made
        editions.append(Kind(pair, len(editions)))
        return editions[-1]


def make_operation(kind: str, edition: int, given: Names, asked: Names) -> Operation:
    """An operation of a kind, made when it is first asked for."""
    with _lock:
        of = _editions[kind][edition]
        if (given, asked) not in of.operations:
            of.operations[given, asked] = Operation(of, given, asked)
        return of.operations[given, asked]


@constant
def attribute_of(kind: str, edition: int, given: Names, asked: Names) -> str:
    """The attribute of a kind that holds an operation.

    torch.compile looks at attributes when they are asked for. A dict it has looked at before does
    not show it what was added since, and of a result it cannot say where it came from.
    """
    name = "_".join(("operation", *given, "and", *asked))
    setattr(_editions[kind][edition], name, make_operation(kind, edition, given, asked))
    return name


def operation(kind: str) -> Operation:
    """The plainest operation of a kind."""
    return kind_of(kind).plain


class Operation:
    """A kind with a set of operands on torch tensors, differentiable any number of times.

    Attributes
    ----------
    forward, backward
        Its two directions; without a backward the results are constants.
    linear
        The backward reads neither variables nor outputs. Then the forward is a linear map, and is
        its own derivative.
    """

    def __init__(self, of: Kind, given: Names, asked: Names) -> None:
        self.of, self.given, self.asked = of, given, asked
        self.kind, self.name = of.kind, of.name
        pair, self.counterpart = of.pair, of.counterpart
        takes = self.counterpart.takes if self.counterpart else ()
        self.is_torchs = not asked and all(n in of.usual or n in takes for n in given)
        flags = {n: n in asked for n in of.flags}
        parameters = tuple(
            p for p in pair.parameters if p.name not in given and p.name not in of.flags
        )
        self.forward = Form(pair.forward, frozenset(given), flags, parameters)
        self.count = len(self.forward.reads)
        self.backward = backward_form(pair, self.forward)
        self.linear = pair.is_linear(given)
        numbers = {
            o.name: k
            for k, o in enumerate(self.forward.reads)
            if o.type in (Type.ELEMENT, Type.STATE)
        }
        self.numbers = tuple(numbers.values()) if self.backward is not None else ()
        # Numbers that the backward gives no gradient for: the formula in torch's ops does.
        self._known_more: dict[tuple[Parameters, int], dict[str, Any] | None] = {}
        self.untold = [k for n, k in numbers.items() if n not in pair.gradients and self.backward]
        self.path = Path(pair, self.forward, self.backward)
        self.is_unary = self.path.is_unary
        overload = "_".join((*(n for n in given if n not in of.usual), *asked))
        suffix = f"_{of.edition}" if of.edition else ""
        self.overload = f"{suffix}.{overload}" if overload else suffix
        self.launch = Launcher(self, self.forward, self.reference_of, self._dispatched)
        self.launch_backward = self.launch
        if self.backward is not None:
            self.launch_backward = Launcher(
                self, self.backward, self._without_kernel, self._dispatched_backward
            )
            self.ComposableBackward = make_composable(self, self.backward, backward_rules(self))
            # Past Python's Function.apply, which asks again what __call__ has asked (4 µs).
            self._direct: Any = super(Function, make_direct(self, PLAIN)).apply  # type: ignore[misc]
            self._whole: Any = make_whole(self).apply
        is_simple = self.backward is not None and not self.untold
        self._call = make_call(self, PLAIN, self._direct) if is_simple else self.long_call
        # A formula is not for Dynamo to read: it is run when the graph is differentiated.
        self._in_graph = whole(lambda *arguments: self.reference(*arguments))
        self.Composable = make_composable(self, self.forward, forward_rules(self))
        self._registered, registered_backward = define(self)
        self._registered_backward: Any = registered_backward
        self.op: Any = self._registered.usual
        self.op_backward: Any = registered_backward and registered_backward.usual

    @property
    def registered(self) -> list[tuple[Form, Any]]:
        """The ops in torch's library, each with its form."""
        sides = ((self.forward, self._registered), (self.backward, self._registered_backward))
        return [
            (form, op)
            for form, held in sides
            if form is not None
            for op in (held.usual, held.unchecked)
            if op is not None
        ]

    def __call__(self, params: Parameters, *tensors: Tensor) -> Any:
        """The forward."""
        return (self.long_call if is_compiling() else self._call)(params, *tensors)

    def long_call(self, params: Parameters, *tensors: Tensor) -> Any:
        """The same wherever it stands."""
        if self.backward is None:
            tensors = tuple(t.detach() for t in tensors)
        if self.untold and self._asks_for_more(tensors):
            params = self.forward.canonical(params, tensors)
            return self._by_formula(params, tensors)
        if is_compiling() or transforms_active() or forward_ad._current_level >= 0:
            return self._transformed(params, *tensors)
        self._refuse_tracing()
        wants_grad = False
        for t in tensors:
            if type(t) not in PLAIN or not t.is_cpu:
                return self._elsewhere(params, *tensors)
            if t.requires_grad:
                wants_grad = True
        if dispatch_modes():
            return self._elsewhere(params, *tensors)
        if wants_grad and torch.is_grad_enabled() and tensors[0].dtype in ELEMENTS:
            if any(map(is_functorch_wrapped_tensor, tensors)):
                tensors = tuple(map(unwrap_if_dead, tensors))
            return self._direct(params, *tensors)
        return self.launch(params, *tensors)

    def unary(self, params: Parameters, x: Tensor) -> Any:
        """The forward of one operand: the same questions as ``__call__``, spelled out."""
        if (
            is_compiling()
            or transforms_active()
            or forward_ad._current_level >= 0
            or type(x) not in PLAIN
            or not x.is_cpu
            or dispatch_modes()
            or is_tracing()
            or (x.requires_grad and is_functorch_wrapped_tensor(x))
        ):
            return self.long_call(params, x)
        if x.requires_grad and torch.is_grad_enabled() and x.dtype in ELEMENTS:
            return self._direct(params, x)
        return self.launch.run(params, x)[0]

    def asked_more(self, params: Parameters, x: Tensor) -> dict[str, Any] | None:
        """What torch's function with more results is called with; None where it has no such call.

        The number of dimensions of ``x`` tells all that parameters do not.
        """
        if is_compiling():
            return self._more(params, x)
        key = (params, x.dim())
        if key not in self._known_more:
            if len(self._known_more) >= _MOST_KNOWN:
                self._known_more.clear()
            self._known_more[key] = self._more(params, x)
        return self._known_more[key]

    def _more(self, params: Parameters, x: Tensor) -> dict[str, Any] | None:
        values = self.forward.values(self.forward.canonical(params, (x,)))
        for name, usual in self.of.beyond.items():
            if values.pop(name) != usual:
                return None
        return values

    def _asks_for_more(self, tensors: Sequence[Tensor]) -> bool:
        """Whether a gradient is wanted, or may be, that the backward does not give."""
        if is_compiling() and transforms_active():
            return True
        return torch.is_grad_enabled() and any(_varies(tensors[k]) for k in self.untold)

    def _by_formula(self, params: Parameters, tensors: tuple[Tensor, ...]) -> Any:
        """The forward with the derivative of the formula, by all numbers."""
        if is_compiling():
            are_whole()
            return self._in_graph(*tensors, *params)
        if (
            forward_ad._current_level >= 0
            or transforms_active()
            or not all(map(_is_plain, tensors))
        ):
            return self.reference(*tensors, *params)
        self._refuse_tracing()
        return self._whole(params, *tensors)

    def _transformed(self, params: Parameters, *tensors: Tensor) -> Any:
        """A call that is compiled, or inside torch.func or a dual level."""
        params = self.forward.canonical(params, tensors)
        if self.is_for_torch(self.forward, params, tensors):
            return self.reference(*tensors, *params)
        if is_compiling():
            if not transforms_active():
                give_rules(self)
                return self._registered.chosen(params)(*tensors, *params)
            is_served = self._is_served(self.forward, params)
            are_whole()
            return (self.reference if is_served else self._in_graph)(*tensors, *params)
        self._refuse_tracing()
        if forward_ad._current_level >= 0 or _functionalizes():
            return self.reference(*tensors, *params)
        return self.Composable.apply(*tensors, *params)

    def pull(self, params: Parameters, *tensors: Tensor) -> Any:
        """The backward, itself differentiable, of its operands in order."""
        assert self.backward is not None
        if self.backward.spreads:
            return self.backward.spread(params, *tensors)
        if is_compiling():
            if transforms_active():
                return self.reference_backward(*tensors, *params)
            return self._registered_backward.chosen(params)(*tensors, *params)
        if forward_ad._current_level >= 0:
            return self.reference_backward(*tensors, *params)
        if transforms_active():
            return self.ComposableBackward.apply(*tensors, *params)
        for t in tensors:
            if type(t) not in PLAIN or not t.is_cpu:
                return self._registered_backward.chosen(params)(*tensors, *params)
        if dispatch_modes():
            return self._registered_backward.chosen(params)(*tensors, *params)
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            return self.ComposableBackward.apply(*tensors, *params)
        return self.launch_backward(params, *tensors)

    def _refuse_tracing(self) -> None:
        """torch.jit.trace writes down torch's calls: the empty result, not the kernel's work."""
        if is_tracing():
            raise UnsupportedError(
                f"{self.name}: torch.jit.trace cannot record pullback's kernels; use torch.export "
                f"or torch.compile, or torch's own function in what is traced"
            )

    def backward_parameters(self, params: Parameters, tensors: Sequence[Tensor]) -> Parameters:
        """Parameters of the backward, of canonical ones."""
        if self.backward is None:
            return params
        return (*params, *self.backward.told(self.forward.shape(params, tensors)))

    def evaluate(self, params: Parameters, *tensors: Tensor) -> Any:
        """The values of the forward, in any context; no derivative is recorded."""
        tensors = tuple(t.detach() for t in tensors)
        if transforms_active():
            return self.Composable.apply(*tensors, *params)
        return self.base(self.forward, params, *tensors)

    def base(self, form: Form, params: Parameters, *tensors: Tensor) -> Any:
        """A call below autograd and torch.func: no gradient is recorded."""
        forward = form is self.forward
        if all(map(_is_plain, tensors)) and not dispatch_modes():
            return (self.launch if forward else self.launch_backward)(params, *tensors)
        registered = self._registered if forward else self._registered_backward
        return registered.chosen(params)(*tensors, *params)

    # Where torch's own function, or the formula in torch's ops, has to do it.

    def is_for_torch(self, form: Form, params: Parameters, tensors: Sequence[Tensor]) -> bool:
        """Whether kernels do not do it: other types, or torch means something else."""
        dtype, counterpart = tensors[form.lead].dtype, self.counterpart
        if dtype not in ELEMENTS:
            return True
        if counterpart is None or not self.is_torchs:
            return False
        if any(tensors[k].dtype != dtype for k in form.typed):
            return True
        if counterpart.means_otherwise is None:
            return False
        extent = form.extent(params, tensors)
        return counterpart.means_otherwise(extent, **self._taken(form, params))

    def _taken(self, form: Form, params: Parameters) -> dict[str, Any]:
        """The parameters that torch's function takes."""
        assert self.counterpart is not None
        values = form.values(params)
        return {n: values[n] for n in self.counterpart.takes if n in values}

    def _is_served(self, form: Form, params: Parameters) -> bool:
        """Whether torch has the kind with these parameters."""
        if self.counterpart is None or not self.is_torchs:
            return False
        values = form.values(params)
        if values.get("ties", self.counterpart.ties) != self.counterpart.ties:
            return False
        return all(values.get(n, usual) == usual for n, usual in self.of.beyond.items())

    def _elsewhere(self, params: Parameters, *tensors: Tensor) -> Any:
        """A call on tensors that are not plain CPU memory, or that a mode wants to see."""
        check_dense(tensors)
        params = self.forward.canonical(params, tensors)
        if any(map(is_sharded, tensors)):
            give_rules(self)
            if self.is_for_torch(self.forward, params, tensors):
                return self.reference(*tensors, *params)
            return self._registered.chosen(params)(*tensors, *params)
        unknown = any(type(t) not in PLAIN and not isinstance(t, _WITHOUT_MEMORY) for t in tensors)
        if unknown or self.is_for_torch(self.forward, params, tensors):
            return self.reference(*tensors, *params)
        return self._registered.chosen(params)(*tensors, *params)

    def _dispatched(self, *arguments: Any) -> Any:
        return self.op(*arguments)

    def _dispatched_backward(self, *arguments: Any) -> Any:
        return self.op_backward(*arguments)

    def reference_of(self, params: Parameters, *tensors: Tensor) -> Any:
        """What a launch gives for tensors it does not take: of nothing there is no derivative."""
        if self._is_served(self.forward, params):
            return self.reference(*tensors, *params)
        return self.forward.evaluated(params, *tensors)

    def reference(self, *arguments: Any) -> Any:
        """The forward in torch's own ops: right under every transform."""
        tensors, params = arguments[: self.count], arguments[self.count :]
        if self._is_served(self.forward, params):
            assert self.counterpart is not None
            return self.counterpart.run(*tensors, **self._taken(self.forward, params))
        known = tensors[self.forward.lead].dtype in ELEMENTS
        if known and self.backward is not None and self.path.has_policy:
            return self._by_policy(params, tensors)
        return self.forward.evaluated(params, *tensors)

    def _by_policy(self, params: Parameters, tensors: tuple[Tensor, ...]) -> Any:
        """A forward whose derivative is the backward's to say, as at ties: made linear here."""
        path, held = self.path, tuple(t.detach() for t in tensors)
        results = as_tuple(self.evaluate(params, *tensors))
        saves = path.saved(held, results)
        backward_params = self.backward_parameters(params, held)

        def pull(*grads: Tensor) -> Any:
            return as_tuple(self.reference_backward(*path.joined(grads, saves), *backward_params))

        zeros = [torch.zeros_like(results[k]) for k in path.differentiable]
        outer = tuple(tensors[k] for k in path.variables)
        pushed = torch.func.vjp(pull, *zeros)[1](outer)
        found = list(results)
        for k, p in zip(path.differentiable, pushed, strict=True):
            # An infinite extreme is the element itself; any other has the kernel's own value.
            moved = results[k] + (p - p.detach())
            kept = torch.where(torch.isfinite(results[k]), results[k], p)
            found[k] = torch.where(torch.isfinite(p), moved, kept)
        return unpacked(found)

    def reference_backward(self, *arguments: Any) -> Any:
        """The backward in torch's own ops."""
        form = self.backward
        assert form is not None
        tensors, params = arguments[: len(form.reads)], arguments[len(form.reads) :]
        if not self._goes_through_torch(params):
            return form.evaluated(params, *tensors)
        assert self.counterpart is not None
        if self.counterpart.backward is not None:
            return self.counterpart.backward(*tensors, **self._taken(form, params))
        held = dict(zip((o.name for o in form.reads), tensors, strict=True))
        if self.linear:
            empty = form.empty(params, *tensors)
            held |= dict(zip(self.path.variable_names, map(torch.zeros_like, empty), strict=True))
        names = [o.name for o in self.forward.reads]
        varying = self.path.variable_names

        def forward(*variables: Tensor) -> Any:
            given = {**held, **dict(zip(varying, variables, strict=True))}
            own = params[: len(self.forward.parameters)]
            return self.reference(*[given[n] for n in names], *own)

        grads = tensors[self.path.grads[0]]
        return unpacked(torch.func.vjp(forward, *[held[n] for n in varying])[1](grads))

    def _goes_through_torch(self, params: Parameters) -> bool:
        """Whether torch's own derivative is the backward."""
        assert self.backward is not None
        if not self._is_served(self.backward, params):
            return False
        assert self.counterpart is not None
        return not self.counterpart.rough_backward

    def _without_kernel(self, params: Parameters, *tensors: Tensor) -> Any:
        assert self.backward is not None
        results = self.backward.empty(params, *tensors)
        if any(t.numel() for t in results):
            return self.reference_backward(*tensors, *params)
        return unpacked(results)

    def pull_twice(
        self, params: Parameters, tensors: Sequence[Tensor], outer: Sequence[Tensor]
    ) -> tuple[Any, ...]:
        """Gradients of the backward by each of its operands."""
        form, path = self.backward, self.path
        assert form is not None
        # What a finished transform had wrapped does not nest in the ones below.
        tensors = tuple(map(unwrap_if_dead, tensors))
        found: list[Any] = [None] * len(tensors)
        if self.linear and path.constants is not None:
            own = params[: len(self.forward.parameters)]
            given = dict(zip(path.variables, outer, strict=True))
            given |= {at: tensors[k] for at, k in path.constants.items()}
            results = as_tuple(self(own, *[given[k] for k in range(self.count)]))
            for k, output in zip(path.grads, path.differentiable, strict=True):
                found[k] = results[output]
            return tuple(found)
        through = self._goes_through_torch(params)
        assert self.counterpart is not None or not through
        # torch's own backward computes the output again: what flows by the output is part of the
        # input's share. So it is here, for an output that autograd takes for a constant.
        if through and self.counterpart.backward is None:  # type: ignore[union-attr]
            read = [k for k in path.differentiated if k not in path.saved_outputs]
        else:
            read = [k for k in path.differentiated if k not in path.lost]

        def backward(*varying: Tensor) -> Any:
            held = list(tensors)
            for k, t in zip(read, varying, strict=True):
                held[k] = t
            if path.lost:
                self._recompute(params, held)
            return as_tuple(self.reference_backward(*held, *params))

        shares = torch.func.vjp(backward, *[tensors[k] for k in read])[1](tuple(outer))
        for k, share in zip(read, shares, strict=True):
            found[k] = share
        return tuple(found)

    def _recompute(self, params: Parameters, held: list[Tensor]) -> None:
        """Outputs that the backward reads and autograd takes for constants, from the operands."""
        assert self.backward is not None
        known = {o.name: t for o, t in zip(self.backward.reads, held, strict=True)}
        own = params[: len(self.forward.parameters)]
        given = [known[o.name] for o in self.forward.reads]
        results = as_tuple(self.forward.evaluated(own, *given))
        for k, output in self.path.lost.items():
            held[k] = results[output]
