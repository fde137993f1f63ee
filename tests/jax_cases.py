"""Programs that test_jax_native.py runs in processes of their own: `python jax_cases.py NAME`.

A process of its own may force CPU devices and float64, and an error inside XLA ends no other test.
"""

import dataclasses
import functools
import re
import sys
import threading

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import kerneltrick as kt
from kerneltrick.engines import _jax_operator, _native_jax
from kerneltrick.engines._xla_call import TARGET, ArrayShape, CallForm, unavailable

RNG = np.random.default_rng(0)
LEAD, HEADS, GROUPS, N = 2, 2, 2, 37


def draw(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def same_bits(x, y):
    x, y = np.asarray(x), np.asarray(y)
    assert x.dtype == y.dtype
    assert x.tobytes() == y.tobytes(), np.abs(x.astype(float) - y.astype(float)).max()


def close(found, expected, most=1e-10):
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        size = max(float(jnp.abs(y).max()), 1e-30)
        assert float(jnp.abs(x - y).max()) <= most * size, (x, y)


def own(options):
    return {n: jnp.asarray(x) if isinstance(x, np.ndarray) else x for n, x in options.items()}


def attention_calls(dtype):
    mask = RNG.random((LEAD, N)) > 0.2
    ids = np.sort(RNG.integers(0, 3, N)).astype(np.int32)
    decay = -RNG.random((LEAD, HEADS, N)).astype(dtype)
    gain = draw(HEADS * GROUPS, dtype=dtype)
    weight = draw(4, 5, dtype=dtype)
    own_weights = draw(HEADS, 4, 5, dtype=dtype)
    causal = {"causal": True}
    return {
        "decay, mask, segments": (
            "elu",
            {**causal, "mask": mask, "log_decay": decay, "segment_ids": ids},
        ),
        "window, sinks, gains": (
            "elu",
            {**causal, "window": 7, "sinks": 2, "far": gain, "mask": mask},
        ),
        "drawn features": ("favor:features=16", {**causal, "log_decay": decay}),
        "full, masks": ("elu", {"mask": mask, "query_mask": mask}),
        "full window": ("hedgehog", {"window": 7, "sinks": 1}),
        "positions": (
            "cosformer:horizon=1000",
            {**causal, "on_zero": "zero", "positions": np.arange(N, dtype=np.int32)},
        ),
        "decay per feature": (
            "elu",
            {**causal, "log_decay": -RNG.random((LEAD, HEADS, N, 4)).astype(dtype)},
        ),
        "unnormalised": ("taylor:order=2", {**causal, "normalize": False}),
        "softmax": ("softmax", {**causal, "window": 2**31 - 1, "mask": mask}),
        "learned weights": (kt.maps.Hedgehog(weight), {**causal, "window": 5}),
        "weights per head": (kt.maps.Hedgehog(own_weights), causal),
    }


def check_attention(name, dtype):
    text, options = attention_calls(dtype)[name]
    q, k, v = (
        draw(LEAD, HEADS * GROUPS, N, 4, dtype=dtype),
        *draw(2, LEAD, HEADS, N, 4, dtype=dtype),
    )
    v = v[..., :3]
    arrays = [jnp.asarray(x) for x in (q, k, v)]
    if name == "softmax":
        same_bits(
            kt.softmax_attention(*arrays, causal=True, mask=jnp.asarray(options["mask"])),
            kt.softmax_attention(q, k, v, causal=True, mask=options["mask"]),
        )
        return
    call = functools.partial(kt.linear_attention, feature_map=text, engine="native")
    here = text
    if not isinstance(text, str):
        here = dataclasses.replace(text, weight=jnp.asarray(text.weight))
    same_bits(call(*arrays, feature_map=here, **own(options)), call(q, k, v, **options))
    expected, state = call(q, k, v, return_state=True, **options)
    found, after = call(*arrays, feature_map=here, return_state=True, **own(options))
    same_bits(found, expected)
    assert np.allclose(after.sums.numpy(), state.sums.numpy(), rtol=1e-12, atol=1e-12)
    if isinstance(text, str):  # the state of learned weights knows their library
        for key in ("segment_ids", "positions"):
            options.pop(key, None)
        expected = call(q, k, v, state=state, **options)
        found = call(*arrays, state=after, **own(options))
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6)


def check_delta(dtype):
    q, k = draw(2, LEAD, HEADS, N, 4, dtype=dtype)
    v, beta = draw(LEAD, HEADS * GROUPS, N, 3, dtype=dtype), RNG.random((LEAD, HEADS * GROUPS, N))
    given = (q, k, v, beta.astype(dtype))
    arrays = [jnp.asarray(x) for x in given]
    decay = -RNG.random((LEAD, HEADS * GROUPS, N)).astype(dtype)
    mask = RNG.random((LEAD, N)) > 0.2
    ids = np.sort(RNG.integers(0, 3, N)).astype(np.int32)
    for options in (
        {},
        {"log_decay": decay, "mask": mask, "segment_ids": ids},
        {
            "erase": k / 2,
            "read": k,
            "normalize_qk": True,
            "log_decay": np.repeat(decay[..., None], 4, -1),
        },
    ):
        call = functools.partial(kt.delta_rule, engine="native", return_state=True)
        expected, state = call(*given, **options)
        found, after = call(*arrays, **own(options))
        same_bits(found, expected)
        same_bits(after.S, state.S)
        same_bits(call(*arrays, state=after)[0], call(*given, state=state)[0])


def bits():
    """A call has the bits of the same call on NumPy arrays."""
    for name in ("decay, mask, segments", "window, sinks, gains", "learned weights"):
        check_attention(name, np.float32)
    check_delta(np.float32)


def all_bits():
    for name in attention_calls(np.float32):
        check_attention(name, np.float32)


def all_bits_in_float64():
    jax.config.update("jax_enable_x64", True)
    for name in attention_calls(np.float64):
        check_attention(name, np.float64)
    check_delta(np.float64)


def half_precision():
    """float16 has NumPy's bits; bfloat16, which NumPy lacks, those of PyTorch."""
    q, k, v = draw(3, 2, 45, 4)
    half = [x.astype(np.float16) for x in (q, k, v)]
    options = {"causal": True, "window": 5, "engine": "native"}
    same_bits(
        kt.linear_attention(*map(jnp.asarray, half), **options),
        kt.linear_attention(*half, **options),
    )
    torch = __import__("torch")
    narrow = [torch.asarray(x).bfloat16() for x in (q, k, v)]
    expected = kt.linear_attention(*narrow, **options).float().numpy()
    found = kt.linear_attention(*(jnp.asarray(x, jnp.bfloat16) for x in (q, k, v)), **options)
    assert found.dtype == jnp.bfloat16
    same_bits(found.astype(jnp.float32), expected)


def torch_gradients():
    """Gradients are those of PyTorch to the bit, where XLA adds nothing of its own."""
    torch = __import__("torch")
    q, k, v = draw(3, LEAD, HEADS, N, 4)
    weights = draw(LEAD, HEADS, N, 4)

    def loss(q, k, v):
        return (kt.linear_attention(q, k, v, causal=True, window=5) * jnp.asarray(weights)).sum()

    found = jax.jit(jax.grad(loss, (0, 1, 2)))(*map(jnp.asarray, (q, k, v)))
    leaves = [torch.asarray(x).requires_grad_() for x in (q, k, v)]
    out = kt.linear_attention(*leaves, causal=True, window=5)
    (out * torch.asarray(weights)).sum().backward()
    for x, y in zip(found, leaves, strict=True):
        same_bits(x, y.grad.numpy())


def losses():
    """Functions of a tree of arrays, by an engine, with every kind of gradient."""
    W = jnp.asarray(draw(LEAD, HEADS * GROUPS, N, 3, dtype=np.float64))
    make = functools.partial(draw, dtype=np.float64)
    base = {"q": make(LEAD, HEADS * GROUPS, N, 4), "k": make(LEAD, HEADS, N, 4)}
    base["v"] = make(LEAD, HEADS, N, 3)
    decay = -np.abs(make(LEAD, HEADS, N))

    def linear(engine, p):
        call = functools.partial(
            kt.linear_attention,
            p["q"],
            p["k"],
            p["v"],
            causal=True,
            log_decay=p["decay"],
            engine=engine,
            return_state=True,
        )
        first, state = call()
        second, state = call(state=state)
        return ((first + second) * W).sum() + (state.U**2).sum() / 100 + (state.Z**2).sum() / 100

    def window(engine, p):
        call = functools.partial(
            kt.linear_attention,
            p["q"],
            p["k"],
            p["v"],
            causal=True,
            window=6,
            sinks=2,
            far=p["gain"],
            engine=engine,
        )
        first, state = call(return_state=True)
        return ((first + call(state=state)) * W).sum()

    def learned(engine, p):
        chosen = kt.maps.Hedgehog(p["weight"])
        out = kt.linear_attention(p["q"], p["k"], p["v"], chosen, causal=True, engine=engine)
        return (out * W).sum()

    def delta(engine, p):
        call = functools.partial(
            kt.delta_rule,
            p["k"],
            p["key"],
            p["q"][..., :3],
            p["beta"],
            engine=engine,
            return_state=True,
        )
        first, state = call(log_decay=p["decay"])
        second, state = call(state=state)
        return (first * W).sum() + (second**2 * W).sum() + (state.S**2).sum()

    wide = (LEAD, HEADS * GROUPS, N)
    return {
        "linear": (linear, {**base, "decay": decay}),
        "window": (window, {**base, "gain": make(HEADS * GROUPS)}),
        "learned": (learned, {**base, "weight": make(4, 5) / 3}),
        "delta": (
            delta,
            {
                "q": base["q"],
                "k": base["k"],
                "key": make(LEAD, HEADS, N, 4),
                "beta": 1 / (1 + np.exp(-make(*wide))),
                "decay": -np.abs(make(*wide)),
            },
        ),
    }


def derivatives(name):
    """Gradient, tangent and second derivatives agree with the chunked engine's."""
    jax.config.update("jax_enable_x64", True)
    loss, given = losses()[name]
    given = own(given)
    native, chunked = functools.partial(loss, "native"), functools.partial(loss, "chunked")
    moves = jax.tree.map(lambda x: jnp.asarray(RNG.standard_normal(x.shape)), given)
    close(jax.jit(jax.grad(native))(given), jax.jit(jax.grad(chunked))(given))
    close(
        jax.jit(lambda p, t: jax.jvp(native, (p,), (t,)))(given, moves),
        jax.jit(lambda p, t: jax.jvp(chunked, (p,), (t,)))(given, moves),
    )

    def along(run):
        def slope(p, t):
            return sum((x * t[n]).sum() for n, x in jax.grad(run)(p).items())

        return jax.jit(jax.grad(slope))(given, moves)

    expected = along(chunked)
    close(along(native), expected)
    forward_over_reverse = jax.jit(lambda p, t: jax.jvp(jax.grad(native), (p,), (t,))[1])
    close(forward_over_reverse(given, moves), expected)


def transformations():
    """vmap, checkpoint, scan, export, donated buffers and threads leave the values as they are."""
    q, k, v = (jnp.asarray(x) for x in draw(3, 3, 2, 21, 4))

    def call(q, k, v):
        return kt.linear_attention(q, k, v, causal=True, window=4)

    def loss(q, k, v):
        return (call(q, k, v) ** 2).sum()

    whole = call(q, k, v)
    same_bits(jax.jit(jax.vmap(call))(q, k, v), whole)
    same_bits(jax.jit(jax.vmap(call, (0, None, 0)))(q, k[0], v), call(q, jnp.stack([k[0]] * 3), v))
    slopes = jax.grad(loss, (0, 1, 2))(q, k, v)
    per_example = jax.jit(jax.vmap(jax.grad(loss, (0, 1, 2))))(q, k, v)
    jax.tree.map(same_bits, per_example, slopes)
    jax.tree.map(same_bits, jax.jit(jax.grad(jax.checkpoint(loss), (0, 1, 2)))(q, k, v), slopes)

    weight = jnp.asarray(draw(3, 4, 5))
    each = jax.vmap(lambda w, q: kt.linear_attention(q, k[0], v[0], kt.maps.Hedgehog(w)))
    for i in range(3):
        one = kt.linear_attention(q[i], k[0], v[0], kt.maps.Hedgehog(weight[i]))
        same_bits(each(weight, q)[i], one)

    def step(state, x):
        out, state = kt.linear_attention(*x, causal=True, state=state, return_state=True)
        return state, out

    pieces = [jnp.stack(jnp.split(x, 3, axis=-2)) for x in (q, k, v)]
    first = kt.linear_attention(*(x[0] for x in pieces), causal=True, return_state=True)[1]
    scanned = jax.jit(lambda s, x: jax.lax.scan(step, s, x))(first, [x[1:] for x in pieces])[1]
    expected = kt.linear_attention(q, k, v, causal=True)
    found = jnp.concatenate(list(scanned), axis=-2)
    np.testing.assert_allclose(found, expected[..., 7:, :], rtol=1e-6, atol=1e-6)

    program = jax.export.export(
        jax.jit(call), disabled_checks=[jax.export.DisabledSafetyCheck.custom_call(TARGET)]
    )(q, k, v)
    same_bits(jax.export.deserialize(program.serialize()).call(q, k, v), whole)

    jitted, found = jax.jit(call), [None] * 8
    jitted(q, k, v)

    def run(i):
        found[i] = np.asarray(jitted(q, k, v))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for x in found:
        same_bits(x, whole)
    same_bits(jax.jit(call, donate_argnums=2)(q, k, v + 0), whole)


def other_devices():
    """A program for a TPU has no call of the core, and one for two platforms has both ways."""
    q, k, v = (jnp.asarray(x) for x in draw(3, 2, 21, 4))
    run = jax.jit(jax.grad(lambda q, k, v: kt.linear_attention(q, k, v, causal=True).sum()))
    traced = run.trace(q, k, v)
    assert TARGET not in traced.lower(lowering_platforms=("tpu",)).as_text()
    assert TARGET in traced.lower(lowering_platforms=("cpu",)).as_text()
    assert TARGET in traced.lower(lowering_platforms=("cpu", "tpu")).as_text()
    # What other devices run is the same function.
    options = {"causal": True, "window": 4, "sinks": 1, "return_state": True}
    jaxpr = jax.make_jaxpr(functools.partial(kt.linear_attention, **options))(q, k, v)
    found = [e for e in _equations(jaxpr.jaxpr) if e.primitive is _jax_operator.forward_p]
    assert len(found) == 1
    form = found[0].params["form"]
    arrays = [jnp.zeros(x.aval.shape, x.aval.dtype) for x in found[0].invars]
    arrays[:3] = q, k, v
    native = _jax_operator._forward_native(*arrays, form=form, split=False)
    plain = _jax_operator._forward_plain(*arrays, form=form)
    for x, y in zip(native, plain, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def _equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for inner in equation.params.values():
            if hasattr(inner, "jaxpr"):
                yield from _equations(inner.jaxpr)


def wrong_shapes():
    """The handler answers with an error to buffers that the call was not made for."""
    q = jnp.asarray(draw(1, 2, 9, 4))
    rule = kt.engines.Rule(kt.maps.get("elu"), 1.0, starts_empty=True, wants_state=False)
    form = CallForm("attention", False, ("q", "k", "v"), rule.text, False)
    assert unavailable() == ""
    assert "attention" in _native_jax.OPERATORS
    right = ArrayShape(q.shape, "float32")
    attribute = np.array(_jax_operator._call(form, (right,) * 3).attribute)

    def call(attribute, *arrays, shape=q.shape):
        results = [jax.ShapeDtypeStruct(shape, jnp.float32)]
        results.append(jax.ShapeDtypeStruct((*shape[:-1], 1), jnp.bool_))
        run = jax.ffi.ffi_call(TARGET, results)
        return jax.block_until_ready(jax.jit(lambda *x: run(*x, call=attribute))(*arrays))

    same_bits(call(attribute, q, q, q)[0], kt.linear_attention(q, q, q, causal=True))
    short = q[..., :5, :]
    broken = attribute.copy()
    broken[0] += 1
    for why, arguments in {
        "argument 1 is type 11 [1, 2, 5, 4]": (attribute, q, short, q),
        "argument 0 is type 4": (attribute, q.astype(jnp.int32), q, q),
        "there are 2 arguments, not 3": (attribute, q, q),
        "made by another version": (broken, q, q, q),
        "ends too early": (attribute[:-3], q, q, q),
        "too long": (np.append(attribute, 0), q, q, q),
    }.items():
        with pytest.raises(Exception, match=re.escape(why)):
            call(*arguments)
    with pytest.raises(Exception, match=re.escape("result 0 is type 11 [1, 2, 5, 4]")):
        call(attribute, q, q, q, shape=short.shape)


def sharded():
    """Sharded arrays give the bits of one device, and nothing is gathered."""
    count = len(jax.devices())
    mesh = Mesh(np.array(jax.devices()).reshape(2, count // 2), ("data", "heads"))
    over = NamedSharding(mesh, P("data", "heads"))
    q, k, v = draw(2, 4, N, 4), draw(2, 2, N, 4), draw(2, 2, N, 3)
    beta = RNG.random((2, 4, N)).astype(np.float32)

    def check(run, *arrays, sums=0):
        one = jax.jit(run)(*map(jnp.asarray, arrays))
        placed = [
            jax.device_put(x, over if x.ndim > 2 else NamedSharding(mesh, P())) for x in arrays
        ]
        program = jax.jit(run).lower(*placed).compile()
        text = program.as_text()
        assert "all-gather" not in text
        assert ("all-reduce" in text) == bool(sums)
        several = program(*placed)
        if sums:
            close(several, one, 1e-5)
        else:
            jax.tree.map(same_bits, several, one)

    def loss(q, k, v):
        return (kt.linear_attention(q, k, v, causal=True, window=5, far=0.5) ** 2).sum()

    check(jax.grad(loss, (0, 1, 2)), q, k, v)
    check(jax.grad(lambda *x: (kt.delta_rule(*x) ** 2).sum(), (0, 1, 2, 3)), k, k, q, beta)

    def learned(weight, q, k, v):
        return (kt.linear_attention(q, k, v, kt.maps.Hedgehog(weight)) ** 2).sum()

    check(jax.grad(learned), draw(4, 5), q, k, v, sums=1)
    try:
        from jax import shard_map
    except ImportError:
        from jax.experimental.shard_map import shard_map
    spec = P("data", "heads")
    local = shard_map(
        lambda *x: kt.linear_attention(*x, causal=True),
        mesh=mesh,
        in_specs=(spec,) * 3,
        out_specs=spec,
    )
    check(jax.grad(lambda *x: (local(*x) ** 2).sum(), (0, 1, 2)), q, k, v)


def sharded_heads(*counts):
    """With these numbers of key heads, of query heads for each and of devices, or with all of them,
    values and gradients are those of one device."""
    jax.config.update("jax_enable_x64", True)
    cases = [tuple(map(int, counts))]
    if not counts:
        cases = [(kv, group, 2, 3, 4) for kv in (1, 2, 3) for group in (1, 2, 3)]
    make = functools.partial(draw, dtype=np.float64)

    def linear(q, k, v, decay, gain):
        out, state = kt.linear_attention(q, k, v, log_decay=decay, causal=True, return_state=True)
        more = kt.linear_attention(q, k, v, log_decay=decay, causal=True, state=state)
        near = kt.linear_attention(q, k, v, causal=True, window=3, sinks=1, far=gain)
        # One head with another window: a group of its own, with one key head.
        windows = (3, *[1] * (k.shape[1] - 1))
        far = kt.linear_attention(q, k, v, causal=True, window=windows)
        exact = kt.softmax_attention(q, k, v, causal=True)
        return sum((x**2).sum() for x in (out + more, near, far, exact, state.U))

    def delta(q, k, v, decay, gain):
        beta = jax.nn.sigmoid(q[..., 0])
        decay = jnp.repeat(decay, q.shape[1] // k.shape[1], axis=1)
        call = functools.partial(kt.delta_rule, k, v, q, beta, log_decay=decay)
        out, state = call(return_state=True)
        return ((out + call(state=state)) ** 2).sum() + (state.S**2).sum()

    for kv, group, *devices in cases:
        shared = [make(LEAD, kv, 9, 4), make(LEAD, kv, 9, 4), -np.abs(make(LEAD, kv, 9))]
        arrays = [make(LEAD, kv * group, 9, 4), *shared, make(kv * group)]
        for loss in (linear, delta):
            run = jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3)))
            expected = run(*map(jnp.asarray, arrays))
            for count in devices:
                mesh = Mesh(np.array(jax.devices()[:count]), ("heads",))
                over = [
                    P(None, "heads") if x.ndim > 1 and x.shape[1] % count == 0 else P()
                    for x in arrays
                ]
                placed = map(jax.device_put, arrays, (NamedSharding(mesh, spec) for spec in over))
                close(run(*placed), expected)


def context_parallel():
    """A sequence split over devices has the outputs and gradients of one device."""
    from kerneltrick import jax as parallel

    jax.config.update("jax_enable_x64", True)
    try:
        from jax import shard_map
    except ImportError:
        from jax.experimental.shard_map import shard_map
    count = len(jax.devices())
    mesh, n = Mesh(np.array(jax.devices()), ("cp",)), 9 * count
    make = functools.partial(draw, dtype=np.float64)
    decay = -np.abs(make(LEAD, 4, n))
    ids = np.sort(RNG.integers(0, 2 * count, (LEAD, n)), axis=-1).astype(np.int32)
    mask = RNG.random((LEAD, n)) > 0.2

    def check(one, several, tokens, before, **extra):
        """`tokens` have their axis of tokens third or, of two axes, second."""

        def loss(call):
            def run(tokens, before):
                out, _ = call(tokens, before)
                return jnp.sin(out).sum()

            return run

        def split(tokens, before):
            specs = {
                n: P(None, "cp") if x.ndim == 2 else P(None, None, "cp") for n, x in tokens.items()
            }
            call = shard_map(
                lambda t, s: several(t, s, **extra),
                mesh=mesh,
                in_specs=(specs, P()),
                out_specs=(P(None, None, "cp"), P()),
                **CHECKED,
            )
            return call(tokens, before)

        fixed = {n: jnp.asarray(x) for n, x in tokens.items() if x.dtype != np.float64}
        moving = {n: jnp.asarray(x) for n, x in tokens.items() if x.dtype == np.float64}
        whole = lambda call: lambda t, s: call({**t, **fixed}, s)  # noqa: E731
        expected, found = (jax.jit(whole(call))(moving, before) for call in (one, split))
        close(found[0], expected[0])
        slopes = [
            jax.jit(jax.grad(loss(whole(call)), (0, 1)))(moving, before) for call in (one, split)
        ]
        close(slopes[1], slopes[0])

    names = {"axis_name": "cp"}
    q, k, v = make(LEAD, 4, n, 4), make(LEAD, 2, n, 4), make(LEAD, 2, n, 3)
    for text, options in (
        ("elu", {"causal": True}),
        ("favor:features=6", {"causal": True}),
        ("elu", {"causal": False}),
    ):
        first = kt.linear_attention(
            *(jnp.asarray(x) for x in (q, k, v)), text, return_state=True, **options
        )[1]
        tokens = {"q": q, "k": k, "v": v, "mask": mask}
        if options["causal"]:
            tokens |= {"log_decay": decay[:, :2], "segment_ids": ids}

        def linear(call, t, U, text=text, options=options, first=first, **extra):
            sums = type(first.carry.sums)(U, None)
            state = dataclasses.replace(first, carry=first.carry._replace(sums=sums))
            return call(feature_map=text, state=state, **t, **options, **extra), 0.0

        check(
            functools.partial(linear, kt.linear_attention),
            functools.partial(linear, parallel.linear_attention, **names),
            tokens,
            first.carry.sums.hi,
        )
    tokens = {
        "q": k,
        "k": k[..., ::-1, :] / 2,
        "v": make(LEAD, 4, n, 3),
        "beta": 1 / (1 + np.exp(make(LEAD, 4, n))),
    }
    for more in ({}, {"log_decay": decay, "segment_ids": ids, "mask": mask}):

        def delta(call, t, S, **extra):
            return call(state=kt.DeltaState(S), **t, **extra), 0.0

        check(
            functools.partial(delta, kt.delta_rule),
            functools.partial(delta, parallel.delta_rule, **names),
            {**tokens, **more},
            jnp.asarray(make(LEAD, 4, 4, 3)),
        )


CHECKED = {"check_vma": False} if hasattr(jax, "shard_map") else {"check_rep": False}


if __name__ == "__main__":
    name, *options = sys.argv[1:]
    globals()[name](*options)
