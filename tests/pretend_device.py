"""A pretend GPU: tensors with real values and another device's tag, and a count of what they cost.

Inside ``with pretend_gpu() as gpu`` torch takes ``device="cuda"`` for this GPU. What lies on it
computes as on a processor, but cannot be mixed with what lies on the host, and its values reach
Python by a counted synchronisation only. ``gpu.launches`` counts operations that a GPU would
launch (views are free), ``gpu.moved_bytes`` what these read and write of its memory (operands
repeated along an axis once), ``gpu.peak_bytes`` the most that tensors held at once,
``gpu.synchronisations`` what waits for the GPU, and ``gpu.uploads`` copies from the host. CUDA
graphs are captured and replayed as on a GPU: what is captured is not executed then, and nothing in
it may wait or copy from the host.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from math import prod
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pgmkit.contraction import kernels
from pgmkit.contraction.kernels import reference
from pgmkit.estimation import device_search

aten = torch.ops.aten
GPU = torch.device("cuda", 0)
_WAITING = {
    aten._local_scalar_dense, aten.equal, aten.nonzero, aten.masked_select, aten._unique2,
    aten.unique_dim, aten.unique_consecutive, aten.is_nonzero, aten.bincount,
}  # fmt: skip
_OVERWRITING = {aten.copy_, aten.fill_, aten.zero_}
_DATA = {torch.tensor, torch.as_tensor, torch.asarray}
_METADATA = {
    aten.sym_size, aten.sym_stride, aten.sym_numel, aten.sym_storage_offset, aten.is_contiguous,
    aten.size, aten.stride, aten.storage_offset, aten.dim, aten.is_same_size,
}  # fmt: skip


class MixedDevices(RuntimeError):
    """An operation had operands on the GPU and on the host."""


class OnGpu(torch.Tensor):
    """A tensor on the pretend GPU; ``host`` has its values."""

    host: torch.Tensor
    gpu: PretendGpu

    @staticmethod
    def __new__(cls, real: torch.Tensor, gpu: PretendGpu) -> OnGpu:
        with torch.inference_mode(False):  # a view and what it is a view of are of one kind
            made = torch.Tensor._make_wrapper_subclass(
                cls, real.size(), strides=real.stride(), storage_offset=real.storage_offset(),
                dtype=real.dtype, device="cpu", dispatch_device=True,
            )  # fmt: skip
        made.host, made.gpu = real, gpu
        gpu.hold(made)
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return GPU

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"OnCard({self.host!r})"

    def numpy(self, *, force: bool = False) -> Any:
        if force:  # it is copied from the GPU first
            return self.host.numpy(force=True)
        raise TypeError("can't convert a tensor on a GPU to numpy; use Tensor.cpu() first")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert a tensor on a GPU to numpy; use Tensor.cpu() first")

    def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
        self.gpu.wait("copy to the host")
        return self.host.detach().clone()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def data_ptr(self) -> int:
        raise AssertionError("a kernel was launched on the pretend GPU")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        gpu = next(each.gpu for each in _tensors((args, kwargs)) if isinstance(each, OnGpu))
        if func is torch.ops.prim.device.default:
            return torch.device("cpu")  # what torch itself need not switch to
        return gpu.run(func, args, kwargs)


class PretendGpu(TorchFunctionMode):
    """Counts what a GPU would do; ``ops`` has the launches by name."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.uploads = 0
        self.moved_bytes = 0
        self.held_bytes = self.peak_bytes = 0
        self._holders: Counter[int] = Counter()
        self.graphs: list[GpuGraph] = []
        self.capturing: GpuGraph | None = None

    @property
    def launches(self) -> int:
        return self.ops.total()

    @property
    def synchronisations(self) -> int:
        return self.waits.total()

    def reset(self) -> None:
        """Count from here."""
        self.ops.clear()
        self.waits.clear()
        self.uploads = self.moved_bytes = 0
        self.peak_bytes = self.held_bytes

    def hold(self, made: OnGpu) -> None:
        """Count the memory of a tensor as long as it or a view of it lives."""
        storage = made.host.untyped_storage()
        place, size = storage.data_ptr(), storage.nbytes()
        self._holders[place] += 1
        if self._holders[place] == 1:
            self.held_bytes += size
            self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        weakref.finalize(made, self._let_go, place, size)

    def _let_go(self, place: int, size: int) -> None:
        self._holders[place] -= 1
        if not self._holders[place]:
            self.held_bytes -= size

    def wait(self, why: str) -> None:
        """Count a synchronisation."""
        if self.capturing is not None:
            raise AssertionError(f"{why} in a capture: the host would wait for what has not begun")
        self.waits[why] += 1

    def upload(self) -> None:
        """Count a copy from the host."""
        if self.capturing is not None:
            raise AssertionError("a copy from the host in a capture")
        self.uploads += 1

    def put(self, host: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor of the host on the GPU, counted."""
        self.upload()
        return OnGpu(host.detach().clone(), self)

    # What names a device: tensors are made, or moved.

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.to:
            return self._moved(args, kwargs)
        if func is torch.Tensor.cuda:
            return self.put(args[0])
        if kwargs.get("device") is None:
            return func(*args, **kwargs)
        target = torch.device(kwargs["device"])
        if target.type != "cuda":
            return func(*args, **kwargs)
        kwargs["device"] = "cpu"
        generator = kwargs.get("generator")
        if isinstance(generator, GpuGenerator):
            kwargs["generator"] = generator.host
        if func in _DATA and isinstance(args[0], OnGpu):
            return args[0] if "dtype" not in kwargs else args[0].to(kwargs["dtype"])
        real_args = _mapped(lambda x: x.host if isinstance(x, OnGpu) else x, args)
        if func in _DATA:
            return self.put(func(*real_args, **kwargs))
        made = self.execute(lambda: func(*real_args, **kwargs), real_args)
        if getattr(func, "__name__", "") != "empty":
            self.ops[getattr(func, "__name__", str(func))] += 1
        wrapped = OnGpu(made.detach(), self)
        return wrapped.requires_grad_() if made.requires_grad else wrapped

    def _moved(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        own, *rest = args
        rest = [*rest, *kwargs.values()]
        others = [each for each in rest if isinstance(each, torch.Tensor)]
        named = [each for each in rest if isinstance(each, str | torch.device)]
        types = [each for each in rest if isinstance(each, torch.dtype)]
        types += [other.dtype for other in others]
        on_gpu = any(isinstance(other, OnGpu) for other in others)
        if named:
            on_gpu = torch.device(named[0]).type == "cuda"
        stays = not named and not others
        result = own
        if types and types[0] != own.dtype:
            result = aten._to_copy.default(own, dtype=types[0])
        if stays or on_gpu == isinstance(own, OnGpu):
            return result
        return self.put(result) if on_gpu else result.cpu()

    # What computes on the GPU.

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """One operation with at least one operand on the GPU."""
        packet = func.overloadpacket
        if packet in _METADATA:
            return func(*_real(args), **_real(kwargs))
        if packet is aten.copy_:
            return self._copied(func, args, kwargs)
        for each in _tensors((args, kwargs)):
            if not isinstance(each, OnGpu) and each.ndim:
                raise MixedDevices(f"{func}: a tensor of shape {tuple(each.shape)} is on the host")
        real_args, real_kwargs = _real(args), _real(kwargs)
        with _Counting(self):
            made = self.execute(lambda: func(*real_args, **real_kwargs), (real_args, real_kwargs))
        known = {id(e.host): e for e in _tensors((args, kwargs)) if isinstance(e, OnGpu)}

        def on_gpu(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            same = known.get(id(value))  # the result of an operation in place
            return OnGpu(value, self) if same is None else same

        return _mapped(on_gpu, made)

    def _copied(self, func: Any, args: Any, kwargs: Any) -> Any:
        target, source = args[0], args[1]
        if not isinstance(target, OnGpu):
            self.wait("copy to the host")
        elif not isinstance(source, OnGpu):
            self.upload()
        else:
            self.ops["copy_"] += 1
            self.moved_bytes += cell_bytes(target.host) + cell_bytes(source.host)
        real_args = _real(args)
        self.execute(lambda: func(*real_args, **kwargs), real_args)
        return target

    def execute(self, work: Callable[[], Any], operands: Any) -> Any:
        """The result of work on tensors of the GPU, kept where a graph is captured."""
        with torch._C.DisableTorchFunction():  # what it is done with is on the host
            if self.capturing is None:
                return work()
            return self.capturing.keep(work, _tensors(operands))

    def count(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        packet, name = func.overloadpacket, func.__name__.split(".")[0]
        by_mask = packet in (aten.index, aten.index_put, aten.index_put_) and any(
            each is not None and each.dtype == torch.bool for each in args[1]
        )
        unsized = func is aten.repeat_interleave.Tensor
        if packet in _WAITING or by_mask or unsized:
            self.wait(name)
        if packet is aten._local_scalar_dense:
            return
        view = _is_view(func)
        allocation = name in ("new_empty", "empty_like", "new_empty_strided", "empty_strided")
        if not view and not allocation:
            self.ops[name] += 1
            read = args[1:] if packet in _OVERWRITING else args
            inputs = {k: v for k, v in kwargs.items() if k != "out"}
            self.moved_bytes += moved(_tensors((read, inputs))) + moved(_tensors(made))


class _Counting(TorchDispatchMode):
    """Counts the operations that one operation consists of."""

    def __init__(self, gpu: PretendGpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _is_composite(func):
            with self:
                return func.decompose(*args, **(kwargs or {}))
        made = func(*args, **(kwargs or {}))
        self.gpu.count(func, args, kwargs or {}, made)
        return made


def moved(tensors: list[torch.Tensor]) -> int:
    """Bytes of all tensors, of equal ones once: what one launch reads, or what it writes."""
    return sum({(t.data_ptr(), t.shape, t.stride()): cell_bytes(t) for t in tensors}.values())


def cell_bytes(tensor: torch.Tensor) -> int:
    """Of the cells behind a tensor: those repeated by a stride of 0 count once."""
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.element_size() * prod(size for size, stride in strides if stride)


class GpuGraph:
    """In place of ``torch.cuda.CUDAGraph``: what was captured works on the same memory again.

    After the capture the memory is as it was before, and what was made in it holds nothing.
    """

    def __init__(self) -> None:
        self._work: list[Callable[[], None]] = []
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._made: dict[int, torch.Tensor] = {}
        self.gpu: PretendGpu | None = None

    def keep(self, work: Callable[[], Any], operands: list[torch.Tensor]) -> Any:
        """Do it now, for the shapes, and again whenever the graph is replayed."""
        for each in operands:
            place = each.untyped_storage().data_ptr()
            if place not in self._made and place not in self._before:
                self._before[place] = (each.untyped_storage(), each.untyped_storage().clone())
        found = work()
        known = {each.untyped_storage().data_ptr() for each in operands}
        fresh = [each for each in _tensors(found) if each.untyped_storage().data_ptr() not in known]
        self._made |= {each.untyped_storage().data_ptr(): each for each in fresh}

        def again() -> None:
            made = _tensors(work())
            new = [each for each in made if each.untyped_storage().data_ptr() not in known]
            for held, value in zip(fresh, new, strict=True):
                held.copy_(value)

        self._work.append(again)
        return found

    def captured(self) -> None:
        for storage, before in self._before.values():
            storage.copy_(before)
        for each in self._made.values():
            each.fill_(torch.nan if each.dtype.is_floating_point else 0)

    def replay(self) -> None:
        assert self.gpu is not None, "nothing was captured"
        self.gpu.ops["graph"] += 1
        with torch.inference_mode(), torch._C.DisableTorchFunction():
            for each in self._work:
                each()


def _capturer(gpu: PretendGpu) -> Callable[..., Any]:
    """In place of ``torch.cuda.graph``."""

    @contextmanager
    def capture(graph: GpuGraph, *, stream: str, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local" and stream == "a stream of cuda:0"
        launches = gpu.ops.copy()
        graph.gpu, gpu.capturing = gpu, graph
        try:
            yield
        finally:
            gpu.capturing = None
        graph.captured()
        gpu.ops = launches
        gpu.graphs.append(graph)

    return capture


class GpuGenerator:
    """A random generator of the pretend GPU."""

    def __init__(self, device: Any = "cpu") -> None:
        self.device = torch.device(device)
        self.host = _Generator()

    def manual_seed(self, seed: int) -> GpuGenerator:
        self.host.manual_seed(seed)
        return self


_Generator = torch.Generator


class _AnyGenerator:
    """Stands for ``torch.Generator``, which would look for a GPU."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return GpuGenerator(device) if torch.device(device).type == "cuda" else _Generator()


_KERNELS = (
    "compare", "contract_steps", "fold", "log_contract", "max_contract", "overwrite", "penalise",
    "shift_exp", "spread",
)  # fmt: skip


def _kernel_bytes(name: str, args: Any) -> int:
    """What a Triton kernel reads and writes: operands once, and what it makes."""
    if name == "contract_steps":
        return args[2].element_size() * _step_cells(*args[3])
    if name in ("shift_exp", "spread"):
        return sum(map(cell_bytes, args))
    if name == "fold":
        rows, _, columns = args[0].shape
        return cell_bytes(args[0]) + 2 * 8 * rows * columns
    if name == "overwrite":  # only what is chosen is moved
        return 2 * cell_bytes(args[0]) * bool(args[1].any())
    if name == "penalise":
        return sum(map(cell_bytes, args)) + cell_bytes(args[0])
    if name == "compare":
        return sum(map(cell_bytes, args))
    left, right = args
    made = left.element_size() * left.shape[0] * left.shape[1] * right.shape[1]
    return cell_bytes(left) + cell_bytes(right) + made


def _step_cells(steps: torch.Tensor, places: torch.Tensor, _: torch.Tensor) -> int:
    """The cells that sums of products read and write; one that is read repeatedly counts once."""
    found = 0
    for _, _, _, b, r, s, c, *runs in steps.tolist():
        extents = (b, r, s, b, s, c, b, r, c)
        own = [
            len(set(places[first : first + count].tolist()))
            for first, count in zip(runs, extents, strict=True)
        ]
        found += prod(own[:3]) + prod(own[3:6]) + prod(own[6:])
    return found


def _launcher(gpu: PretendGpu) -> ModuleType:
    """In place of the modules of Triton kernels: the reference's values, for one launch each.

    That the kernels give these values is for Triton's interpreter to show.
    """
    module = ModuleType("pgmkit.contraction.kernels.cuda")

    def launched(name: str) -> Callable[..., Any]:
        def launch(*args: Any) -> Any:
            if not all(isinstance(each, OnGpu) for each in _tensors(args)):
                raise MixedDevices(f"{name}: a tensor is on the host")
            gpu.ops[name] += 1
            real_args = _real(args)
            gpu.moved_bytes += _kernel_bytes(name, real_args)
            found = gpu.execute(lambda: getattr(reference, name)(*real_args), real_args)
            own = {id(x.host): x for x in _tensors(args) if isinstance(x, OnGpu)}

            def on_gpu(value: Any) -> Any:
                if not isinstance(value, torch.Tensor):
                    return value
                return own[id(value)] if id(value) in own else OnGpu(value, gpu)

            return _mapped(on_gpu, found)

        return launch

    for name in _KERNELS:
        setattr(module, name, launched(name))
    return module


@contextmanager
def pretend_gpu(gpu_bytes: int = 80 << 30) -> Iterator[PretendGpu]:
    """A machine with one GPU, whose tensors pretend, and so many bytes free on it."""

    with (
        # A CUDA build of torch is taken for one without CUDA: there is no driver to ask.
        mock.patch.object(torch.version, "cuda", None),
        mock.patch.object(torch.accelerator, "is_available", lambda: False),
        mock.patch.object(torch.cuda, "is_available", lambda: True),
        mock.patch.object(torch.cuda, "device_count", lambda: 1),
        mock.patch.object(torch.cuda, "mem_get_info", lambda device: (gpu_bytes, gpu_bytes)),
        mock.patch.object(torch, "Generator", _AnyGenerator),
        mock.patch.object(torch.cuda, "device", _entered),
        mock.patch.object(torch.cuda, "Stream", lambda: f"a stream of {_CURRENT[-1]}"),
        mock.patch.object(kernels, "has_triton", lambda device: True),
        mock.patch.object(torch.cuda, "CUDAGraph", GpuGraph),
        mock.patch.dict(device_search.KEPT, clear=True),
        _modules_move(),
        PretendGpu() as gpu,
    ):
        module = _launcher(gpu)
        with (
            _imported(module),
            mock.patch.object(kernels, "cuda", module, create=True),
            mock.patch.object(kernels, "cuda_steps", module, create=True),
            mock.patch.object(torch.cuda, "graph", _capturer(gpu)),
        ):
            yield gpu


_CURRENT = ["another device"]


@contextmanager
def _entered(device: torch.device) -> Iterator[None]:
    """In place of ``torch.cuda.device``: streams that are made within are of this device."""
    _CURRENT.append(f"cuda:{device.index or 0}")
    try:
        yield
    finally:
        _CURRENT.pop()


@contextmanager
def _modules_move() -> Iterator[None]:
    """Modules get new parameters there: those of the host cannot become tensors of the GPU."""
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        yield
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)


@contextmanager
def _imported(module: ModuleType) -> Iterator[None]:
    """Only this name changes: what torch imports meanwhile must stay, it cannot load twice."""
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        yield
    finally:
        if before is None:
            del sys.modules[module.__name__]
        else:
            sys.modules[module.__name__] = before


@cache
def _is_view(func: Any) -> bool:
    return any(a.alias_info and not a.alias_info.is_write for a in func._schema.arguments)


@cache
def _is_composite(func: Any) -> bool:
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)


def _tensors(tree: Any) -> list[torch.Tensor]:
    """The tensors in nested tuples, lists and dictionaries.

    This function and the next one walk through the operands of every operation; torch's own
    (`torch.utils._pytree`), which know more containers, took half of the time on the GPU.
    """
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, tuple | list):
        return []
    return [found for each in tree for found in _tensors(each)]


def _mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """Nested tuples, lists and dictionaries with other leaves."""
    if isinstance(tree, dict):
        return {name: _mapped(change, each) for name, each in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)([_mapped(change, each) for each in tree])  # type: ignore[call-arg]
    return change(tree)


def _real(tree: Any) -> Any:
    return _mapped(lambda x: x.host if isinstance(x, OnGpu | GpuGenerator) else x, tree)
