"""Questions about an array that only its own library can answer."""

from __future__ import annotations

import copy
import functools
import sys
from typing import Any, TypeAlias

import array_api_compat
import numpy as np

Array: TypeAlias = Any  # an array of any library that follows the array-API standard
Namespace: TypeAlias = Any  # that library's array-API module


def namespace(**arrays: Array | None) -> Namespace:
    """The array-API namespace shared by all arrays given (None is skipped); TypeError if not one.

    >>> import numpy as np
    >>> namespace(q=np.zeros(3)).__name__
    'array_api_compat.numpy'
    """
    given = {name: x for name, x in arrays.items() if x is not None}
    if all(type(x) is np.ndarray for x in given.values()):
        return space(next(iter(given.values())))
    for name, x in given.items():
        if not is_array(x):
            raise TypeError(
                f"{name} must be an array (NumPy, PyTorch, JAX or another array-API library), "
                f"not {type(x).__name__}; convert it first, for example with numpy.asarray"
            )
        if isinstance(x, np.ma.MaskedArray):
            raise TypeError(f"{name} is a numpy masked array; pass the plain data and mask=")
    libraries = {name: library(x) for name, x in given.items()}
    if len(set(libraries.values())) > 1:
        listing = ", ".join(f"{name}: {lib}" for name, lib in libraries.items())
        raise TypeError(f"all arrays must come from one library, but got {listing}")
    devices = {name: d for name, x in given.items() if (d := device(x)) is not None}
    if len(set(devices.values())) > 1:
        listing = ", ".join(f"{name}: {dev}" for name, dev in devices.items())
        raise ValueError(f"all arrays must be on one device, but got {listing}")
    return space(next(iter(given.values())))


def is_array(x: Any) -> bool:
    return _is_tensor(x) or bool(array_api_compat.is_array_api_obj(x))


def _is_tensor(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


_LIBRARIES: dict[type, str] = {}
_SPACES: dict[type, Namespace] = {}


def library(x: Array) -> str:
    """'numpy', 'torch', 'jax', 'array_api_strict' or the module an array's type lives in."""
    kind = type(x)
    if kind is np.ndarray:
        return "numpy"
    if _is_tensor(x):
        return "torch"
    if kind not in _LIBRARIES:
        if isinstance(x, (np.ndarray, np.generic)):
            name = "numpy"
        elif array_api_compat.is_jax_array(x):
            name = "jax"
        else:
            name = kind.__module__.split(".")[0]
        _LIBRARIES[kind] = name
    return _LIBRARIES[kind]


def space(x: Array) -> Namespace:
    """The namespace of an array that is known to be one; `namespace` is for what users pass."""
    kind = type(x)
    if kind not in _SPACES:
        _SPACES[kind] = array_api_compat.array_namespace(x)
    return _SPACES[kind]


def device(x: Array) -> Any:
    """Where x is; None while it is being traced."""
    lib = library(x)
    if lib == "jax" and _is_jax_tracer(x):
        return None
    return x.device if lib in ("numpy", "torch") else array_api_compat.device(x)


def _is_jax_tracer(x: Array) -> bool:
    return isinstance(x, sys.modules["jax"].core.Tracer)


def is_concrete(x: Array) -> bool:
    """Whether the values of x can be looked at now: on the CPU and not traced."""
    lib = library(x)
    if lib == "jax":
        return not _is_jax_tracer(x) and all(d.platform == "cpu" for d in x.devices())
    if lib == "torch":
        torch = sys.modules["torch"]
        return _is_ordinary(x, torch) and not _watched(torch)
    return True


def recorded(*arguments: Any) -> bool:
    """Whether PyTorch's autograd records what is made of these, of which some may be tensors."""
    torch = sys.modules.get("torch")
    return bool(
        torch is not None and torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments)
    )


def is_overwritable(x: Array) -> bool:
    """Whether the entries of an array of NumPy's or PyTorch's may be changed one by one: it is not
    read-only, and no two of them share their memory, as those of an expanded tensor do."""
    steps = x.stride() if library(x) == "torch" else x.strides
    apart = all(step != 0 for step, size in zip(steps, x.shape, strict=True) if size > 1)
    apart = apart or 0 in x.shape  # no entries, whatever the strides say
    return apart and (library(x) == "torch" or bool(x.flags.writeable))


def _is_ordinary(x: Any, torch: Any) -> bool:
    """Whether x is a tensor on the CPU, not a FakeTensor, and not wrapped by torch.func."""
    return (
        type(x) in (torch.Tensor, torch.nn.Parameter)
        and x.is_cpu
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
    )


def _watched(torch: Any) -> bool:
    return bool(torch.compiler.is_compiling() or torch.jit.is_tracing())


_PLAIN = {np.ndarray}


def surroundings(*arrays: Any) -> Any:
    """What arrays made beside these depend on, if they are ordinary arrays of NumPy's or tensors of
    PyTorch's with their values at hand (its inference mode, and whether there are tangents); None
    of others."""
    kinds = set(map(type, arrays))
    if kinds == _PLAIN:
        return ()
    torch = sys.modules.get("torch")
    if torch is None or _watched(torch) or not all(_is_ordinary(x, torch) for x in arrays):
        return None
    return torch.is_inference_mode_enabled(), torch.autograd.forward_ad._current_level >= 0


def all_finite(x: Array) -> bool:
    """Whether no value of a concrete x is NaN or inf: in one pass, as either spoils the sum."""
    xp = space(x)
    with np.errstate(over="ignore", invalid="ignore"):
        total = xp.sum(x, dtype=compute_dtype(x))
        return bool(xp.isfinite(total)) or bool(xp.all(xp.isfinite(x)))


def clean_blocks_only(x: Array) -> bool:
    """Whether a check of values may be left out of a block where it finds nothing (no tracing)."""
    return library(x) != "jax" and is_concrete(x)


# Libraries take long to say what a dtype is called and of what kind it is; a small call is short.
_DTYPE_NAMES: dict[tuple[type, Any], str] = {}
_FLOATING: dict[tuple[type, Any], bool] = {}


def dtype_name(x: Array) -> str:
    """The name of x's dtype, the same for every library: "float32"."""
    key = type(x), x.dtype
    name = _DTYPE_NAMES.get(key)
    if name is None:
        name = _DTYPE_NAMES[key] = str(x.dtype).rpartition(".")[2]
    return name


def is_floating(x: Array) -> bool:
    key = type(x), x.dtype
    known = _FLOATING.get(key)
    if known is None:
        try:
            known = bool(space(x).isdtype(x.dtype, "real floating"))
        except TypeError:  # a dtype that the library itself does not know, as ml_dtypes' in NumPy
            known = False
        _FLOATING[key] = known
    return known


def is_integer(x: Array) -> bool:
    xp = space(x)
    return bool(xp.isdtype(x.dtype, "integral"))


_COMPUTE_DTYPES: dict[tuple[type, Any], Any] = {}


def compute_dtype(x: Array) -> Any:
    """The dtype in which x is summed: float64 for more than 32 bits, float32 for all others.

    The number of bits decides, so that NumPy's long double and arrays of the other byte order are
    not computed in float32.
    """
    key = type(x), x.dtype
    known = _COMPUTE_DTYPES.get(key)
    if known is None:
        xp = space(x)
        wide = x.dtype != xp.float32 and is_floating(x) and xp.finfo(x.dtype).bits > 32
        known = _COMPUTE_DTYPES[key] = xp.float64 if wide else xp.float32
    return known


def widened(x: Array) -> Array:
    """Numbers in a dtype with room for arithmetic: int64 (int32 in JAX), or at least float32."""
    return astype(x, compute_dtype(x) if is_floating(x) else index_dtype(x))


def index_dtype(like: Array) -> Any:
    """The widest whole numbers that the library has without being asked for more."""
    if library(like) == "jax" and not sys.modules["jax"].config.jax_enable_x64:
        return sys.modules["jax"].numpy.int32
    return space(like).int64


def astype(x: Array, dtype: Any) -> Array:
    if x.dtype == dtype:
        return x
    return space(x).astype(x, dtype, copy=False)


def autocast(*arrays: Array) -> tuple[Array, ...] | None:
    """Arrays of several dtypes in the widest of them, where autocast is on; None where it is not.

    It narrows what some layers make and leaves the rest, so that models meet both at once.
    """
    first = arrays[0]
    if library(first) != "torch" or first.device.type == "meta":
        return None
    torch = sys.modules["torch"]
    if not torch.is_autocast_enabled(first.device.type):
        return None
    dtype = functools.reduce(torch.promote_types, (x.dtype for x in arrays))
    return tuple(x.to(dtype) for x in arrays)


def stop_gradient(x: Array) -> Array:
    """x as a constant to automatic differentiation."""
    lib = library(x)
    if lib == "torch":
        return x.detach()
    if lib == "jax":
        return sys.modules["jax"].lax.stop_gradient(x)
    return x


def copied(x: Array) -> Array:
    """An array of its own with the values of x, and its gradient where it has a history."""
    lib = library(x)
    if lib == "torch":
        return copy.deepcopy(x) if x.is_leaf else x.clone()
    if lib == "jax":
        return x  # never changed by anybody
    return space(x).asarray(x, copy=True)


def contiguous(x: Array) -> Array:
    """NumPy: a C-ordered copy if needed, so that rounding does not depend on strides."""
    return np.ascontiguousarray(x) if isinstance(x, np.ndarray) else x


def constant(values: Any, like: Array, dtype: Any = None) -> Array:
    """values (NumPy, or an array of the library of `like`) beside `like`, in its dtype or `dtype`.

    Learned weights that are already arrays of that library keep their gradient.
    """
    xp = space(like)
    dtype = like.dtype if dtype is None else dtype
    if not isinstance(values, np.ndarray) and library(values) == library(like):
        return astype(values, dtype)
    return convert(as_numpy(values) if is_array(values) else np.asarray(values), like, xp, dtype)


def convert(values: np.ndarray[Any, Any], like: Array, xp: Namespace, dtype: Any) -> Array:
    lib = library(like)
    if lib == "numpy":
        return values.astype(dtype, copy=False)
    if lib == "torch":
        copy = None if values.flags.writeable else True  # torch has no read-only tensors
        return xp.asarray(values, dtype=dtype, device=like.device, copy=copy)
    if lib == "jax" and _is_jax_tracer(like):
        return xp.asarray(values, dtype=dtype)
    return xp.astype(xp.asarray(values, device=device(like)), dtype, copy=False)


def zeros(shape: tuple[int, ...], like: Array, dtype: Any) -> Array:
    """Zeros of the library and on the device of `like`."""
    dev = None if library(like) == "jax" else device(like)
    return space(like).zeros(shape, dtype=dtype, device=dev)


def stand_in(kind: type, dtype: Any, shape: tuple[int, ...]) -> Array:
    """An array of NumPy's or PyTorch's that has a shape, but no memory for its values."""
    if kind is np.ndarray:
        return np.broadcast_to(np.zeros((), dtype), shape)
    return sys.modules["torch"].zeros((), dtype=dtype).expand(shape)


def swap_axes(x: Array, a: int, b: int) -> Array:
    """x with two axes (counted from the end) exchanged."""
    order = list(range(x.ndim))
    order[a], order[b] = order[b], order[a]
    return space(x).permute_dims(x, tuple(order))


def _tensor_values(x: Any, torch: Any) -> np.ndarray[Any, Any]:
    if x.requires_grad or not x.is_cpu:
        x = x.detach().cpu()
    x = x.resolve_neg() if x.is_neg() else x
    found: np.ndarray[Any, Any] = (x.float() if x.dtype == torch.bfloat16 else x).numpy()
    return found


def as_numpy(x: Array) -> np.ndarray[Any, Any]:
    """The values of x as a NumPy array (bfloat16 becomes float32)."""
    lib = library(x)
    if lib == "torch":
        torch = sys.modules["torch"]
        if not torch._C._are_functorch_transforms_active():
            return _tensor_values(x, torch)
        with torch._C._DisableFuncTorch():  # it would wrap what is made of x, which has no memory
            return _tensor_values(x, torch)
    if lib == "jax":
        jnp = sys.modules["jax"].numpy
        return np.asarray(x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x)
    if lib == "numpy":
        return np.asarray(x)
    return np.from_dlpack(x)
