"""Costs agree with counted operations; orders, crossover lengths and printed numbers."""

import functools
import itertools
import json
import math
from fractions import Fraction

import counted
import numpy as np
import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

import kerneltrick as kt
from kerneltrick import costs, maps
from kerneltrick.costs import Polynomial, symbols

SIZES = {"n": 6, "D": 3, "M": 4}
rng = np.random.default_rng(7)
Q, K = rng.standard_normal((2, SIZES["n"], SIZES["D"]))
V = rng.standard_normal((SIZES["n"], SIZES["M"]))


def elu(meter, x):
    return [meter.add(meter.exp(min(y, 0)), meter.max(meter.max(y, y), 0)) for y in x]


def quadratic(meter, x):
    """Coefficient times factor times factor, with 1 as coordinate 0: two products per feature."""
    full = [1.0, *x]
    pairs = itertools.combinations_with_replacement(range(len(full)), 2)
    found = []
    for i, j in pairs:
        root = 1.0 if i == j else math.sqrt(2)
        found.append(meter.multiply(meter.multiply(root, full[i]), full[j]))
    return found


def favor(kind, features, seed=0):
    feature_map = maps.Favor(features=features, kind=kind, seed=seed)

    def phi(meter, x):
        projected = [meter.dot(w, x) for w in feature_map.projection(len(x))]
        half = meter.div(meter.dot(x, x), 2)
        if kind == "trig":
            root = math.sqrt(len(projected))
            both = [meter.cos(y) for y in projected] + [meter.sin(y) for y in projected]
            return [meter.div(y, root) * math.exp(half) for y in both]
        if kind == "hyperbolic":
            projected = projected + [meter.neg(y) for y in projected]
        top = -math.inf
        for y in projected:
            top = meter.max(top, y)
        root = math.sqrt(len(projected))
        scaled = [meter.div(meter.exp(meter.sub(y, top)), root) for y in projected]
        scale = math.exp(meter.sub(top, half))
        return [y * scale for y in scaled]

    return phi, feature_map


LINEAR = {"full": costs.linear, "recurrent": costs.recurrent, "chunked": costs.chunked}


def decoder_weights(d, **columns):
    """Matrices of d rows, and that of the output, which leads back to d columns."""
    widths = {name: width for name, width in columns.items() if name != "o"}
    weights = {name: rng.standard_normal((d, width)) for name, width in widths.items()}
    return {**weights, "o": rng.standard_normal((columns["o"], d))}


def agree_on_memory(cost, kept, weights, activations, **sizes):
    """`activations` are numbers for each sequence; what is kept is read, and written if a state."""
    numbers = cost.at(**sizes, w=8)
    assert numbers.memory == sum(x.nbytes for x in kept)
    moves = 2 * kept[0].nbytes if len(kept) == 1 else numbers.memory
    read = sum(x.nbytes for x in weights.values()) + moves
    assert numbers.moved == read + 8 * sizes["b"] * 2 * activations
    if len(kept) == 1:
        symbols_used = cost.multiply_adds.symbols + cost.moved.symbols + cost.memory.symbols
        assert "n" not in symbols_used


def agree(meter, cost, **sizes):
    numbers = cost.at(**sizes)
    assert meter.products == numbers.multiply_adds
    assert meter.elementwise == numbers.elementwise


def test_softmax_costs_what_its_loop_does():
    meter = counted.Meter()
    np.testing.assert_allclose(counted.softmax(meter, Q, K, V), kt.softmax_attention(Q, K, V))
    agree(meter, costs.softmax(), **SIZES)
    agree(meter, costs.softmax(streamed=True), **SIZES, B=2)


def test_projections_cost_what_their_loop_does():
    meter, x = counted.Meter(), rng.standard_normal((6, 5))
    for width in (3, 3, 4):
        counted.project(meter, x, rng.standard_normal((5, width)))
    assert meter.products == costs.projections().at(F=5, **SIZES).multiply_adds


@each(
    "phi, text",
    [(elu, "elu"), (quadratic, "poly:degree=2")]
    + [(f, str(m)) for f, m in (favor(k, 8) for k in ("positive", "hyperbolic", "trig"))],
)
@each("kind", ["full", "recurrent", "chunked"])
def test_linear_attention_costs_what_its_loop_does(phi, text, kind):
    meter, causal = counted.Meter(), kind != "full"
    if kind == "chunked":
        found = counted.chunked(meter, phi, Q, K, V, 3)
    else:
        found = counted.linear(meter, phi, Q, K, V, causal=causal)
    wanted = kt.linear_attention(Q, K, V, text, causal=causal, scale=1.0)
    np.testing.assert_allclose(found, wanted, rtol=1e-9)
    agree(meter, LINEAR[kind](text), **SIZES, C=3)


@each("kind", ["recurrent", "chunked"])
def test_the_delta_rule_costs_what_its_loop_does(kind):
    meter = counted.Meter()
    beta, log_decay = rng.random(6), -rng.random(6)
    arrays = (Q, 0.5 * K, V, beta, log_decay)
    if kind == "chunked":
        found, cost = counted.delta_chunked(meter, *arrays, 3), costs.delta_chunked()
    else:
        found, cost = counted.delta_recurrent(meter, *arrays), costs.delta_recurrent()
    wanted = kt.delta_rule(Q, 0.5 * K, V, beta, log_decay=log_decay)
    np.testing.assert_allclose(found, wanted, rtol=1e-9)
    agree(meter, cost, **SIZES, C=3)


def test_the_delta_rule_takes_the_flops_that_are_published():
    """6·d·M + 2·C·(d+M) for a token in chunks, without decays, and 7·d·M by tokens."""
    d, chunk = 128, 64
    parts = costs.delta_chunked().at(n=chunk, D=d, M=d, C=chunk).parts
    products = sum(count for name, count in parts.items() if name != "decays and β")
    assert 2 * products / chunk == 6 * d * d + 2 * chunk * (d + d)
    parts = costs.delta_recurrent().at(n=1, D=d, M=d).parts
    assert 2 * sum(parts.values()) - parts["decay of S"] == 7 * d * d + 2 * d


@each("shared", [1, 2])
def test_decoding_by_the_delta_rule_costs_what_its_loop_does(shared):
    b, d, h, k, M = 2, 6, 4, 3, 2
    meter = counted.Meter()
    weights = decoder_weights(d, q=shared * k, k=shared * k, v=h * M, beta=h, decay=h, o=h * M)
    state = np.ones((b, h, k, M))
    counted.delta_decode(meter, rng.standard_normal((b, d)), weights, state, shared)
    cost = costs.delta_decoding()
    sizes = {"b": b, "d": d, "h": h, "g": shared, "k": k, "M": M}
    agree(meter, cost, **sizes)
    agree_on_memory(cost, [state], weights, d + 2 * (shared * k + h * M + h), **sizes)


def test_summary_counts_the_delta_rule_when_asked(run):
    sizes = costs.Sizes(n=4096, d=64)
    names = [row.cost.name for row in costs.summary(sizes, delta=True)]
    assert names[-2:] == ["delta rule, by tokens", "delta rule, by chunks"]
    names = [row.cost.name for row in costs.summary(sizes, decode=True, delta=True)]
    assert [x for x in names if "delta" in x] == [
        "delta rule decoding", "delta rule decoding, n steps"
    ]  # fmt: skip
    with pytest.raises(ValueError, match="not in training"):
        costs.summary(sizes, train=True, delta=True)
    code, out, _ = run("costs", "--delta", "--no-measure", "--n", 64, "--d", 8)
    assert code == 0
    assert "4·n·D·M + n·M" in out


@each("text", ["identity", "elu", "relu", "relu2", "exp", "square"])
@each("d", [1, 5])
def test_maps_cost_what_their_own_code_does(text, d):
    meter, feature_map = counted.Meter(), maps.get(text)
    # If a maximum chose the constant 0, later operations on it would not be counted.
    points = np.linspace(0.5, 2, d) * (-1 if text == "elu" else 1)
    x = np.array([[counted.Number(y, meter) for y in points]], dtype=object)
    features = feature_map.phi(x)
    cost = costs.feature_cost(text)
    assert features.shape[1] == cost.features.at(D=d) == feature_map.dim(d)
    assert meter.products == cost.products.at(D=d)
    assert meter.elementwise == cost.elementwise.at(D=d)


def test_learned_weights_are_counted_as_projections():
    for text in ("cosformer:horizon=9", "hedgehog", "t2r:features=5"):
        assert costs.feature_cost(text).features.at(D=4) == maps.get(text).dim(4)
    weighted = maps.Hedgehog(weight=np.ones((4, 6)))
    cost = costs.feature_cost(weighted)
    assert (cost.features.at(), cost.products.at(D=4)) == (12, 24)


def test_a_function_is_counted_without_its_inside():
    def phi(x):
        return np.concatenate([x, x * x], axis=-1)

    cost = costs.linear(phi, d=5)
    assert "not counted" in cost.name
    assert cost.at(n=10, D=5, M=3).multiply_adds == 2 * 10 * 10 * 4
    with pytest.raises(ValueError, match="pass d"):
        costs.feature_cost(phi)


@each("shared", [1, 2])
def test_decoding_costs_what_its_loop_does(shared):
    b, n, d, h, k, v = 2, 5, 6, 4, 3, 2
    meter = counted.Meter()
    weights = decoder_weights(d, q=h * k, k=shared * k, v=shared * v, o=h * v)
    cache_k = rng.standard_normal((b, n, shared, k))
    cache_v = rng.standard_normal((b, n, shared, v))
    counted.decode(meter, rng.standard_normal((b, d)), weights, cache_k, cache_v, h, shared)
    sizes = {"b": b, "n": n, "d": d, "h": h, "g": shared, "k": k, "v": v}
    agree(meter, costs.decoding(), **sizes)
    kept = [cache_k, cache_v]
    agree_on_memory(costs.decoding(), kept, weights, d + (h + shared) * (k + v), **sizes)


@each("shared", [1, 2])
def test_linear_decoding_costs_what_its_loop_does(shared):
    b, d, h, k, M = 2, 6, 4, 3, 2
    meter = counted.Meter()
    weights = decoder_weights(d, q=h * k, k=shared * k, v=shared * M, o=h * M)
    state = np.ones((b, shared, 10, M + 1))
    x = rng.standard_normal((b, d))
    counted.linear_decode(meter, quadratic, x, weights, state, h, shared)
    cost = costs.linear_decoding("poly:degree=2")
    sizes = {"b": b, "d": d, "h": h, "g": shared, "k": k, "M": M}
    agree(meter, cost, **sizes)
    agree_on_memory(cost, [state], weights, d + (h + shared) * (k + M), **sizes)


@each("name", ["decoding", "linear_decoding", "delta_decoding"])
def test_n_steps_cost_the_sum_of_the_steps(name):
    map_of = {"feature_map": "elu"} if name == "linear_decoding" else {}
    make = functools.partial(getattr(costs, name), **map_of)
    sizes = {"b": 2, "d": 12, "h": 4, "g": 2}
    steps = [make().at(n=t, **sizes) for t in range(1, 8)]
    whole = make(steps=True).at(n=7, **sizes)
    assert whole.multiply_adds == sum(s.multiply_adds for s in steps)
    assert whole.elementwise == sum(s.elementwise for s in steps)
    assert whole.moved == sum(s.moved for s in steps)
    assert whole.memory == steps[-1].memory


def test_formed_softmax_moves_and_holds_what_its_steps_do():
    memory = counted.Memory()
    n, D, M = (SIZES[s] for s in "nDM")

    def rows(scores):
        scores -= scores.max(axis=1, keepdims=True)  # in place: nothing new is held
        np.exp(scores, out=scores)
        return scores / scores.sum(axis=1, keepdims=True)

    scores = memory.step(lambda q, k: q @ k.T / math.sqrt(D), Q, K)
    memory.free(scores)
    weights = memory.step(rows, scores)
    output = memory.step(lambda a, v: a @ v, weights, V, out=True)
    np.testing.assert_allclose(output, kt.softmax_attention(Q, K, V))
    numbers = costs.softmax().at(**SIZES, w=8)
    assert (memory.moved, memory.most) == (numbers.moved, numbers.memory)
    # Backward: dV, dweights, dscores, dQ, dK.
    grad = np.ones((n, M))
    memory.step(lambda a, g: a.T @ g, weights, grad)
    dweights = memory.step(lambda g, v: g @ v.T, grad, V)
    dscores = memory.step(lambda a, g: a * (g - (a * g).sum(1, keepdims=True)), weights, dweights)
    memory.step(lambda s, k: s @ k, dscores, K)
    memory.step(lambda s, q: s.T @ q, dscores, Q)
    assert memory.moved == costs.softmax(train=True).at(**SIZES, w=8).moved


def test_streamed_softmax_moves_and_holds_what_its_steps_do():
    memory, B, outputs = counted.Memory(), 3, []
    top, total = np.empty(len(Q)), np.empty(len(Q))
    tile = np.empty((B, B))
    memory.hold(top, total, tile)

    def attend(start):
        def run(q, k, v):
            out = np.zeros((B, V.shape[1]))
            here, sums = np.full(B, -np.inf), np.zeros(B)
            for j in range(0, len(k), B):  # tiles of keys, with a running maximum
                tile[:] = q @ k[j : j + B].T / math.sqrt(q.shape[1])
                new = np.maximum(here, tile.max(axis=1))
                weights = np.exp(tile - new[:, None])
                out = out * np.exp(here - new)[:, None] + weights @ v[j : j + B]
                sums = sums * np.exp(here - new) + weights.sum(axis=1)
                here = new
            top[start : start + B], total[start : start + B] = here, sums
            return out / sums[:, None]

        return run

    for start in range(0, len(Q), B):
        outputs.append(memory.step(attend(start), Q[start : start + B], K, V, out=True))
    np.testing.assert_allclose(np.concatenate(outputs), kt.softmax_attention(Q, K, V))
    numbers = costs.softmax(streamed=True).at(**SIZES, w=8, B=B)
    assert (memory.moved, memory.most) == (numbers.moved, numbers.memory)


@each("kind", ["full", "chunked", "recurrent"])
def test_linear_attention_moves_and_holds_what_its_steps_do(kind):
    memory, size = counted.Memory(), {"full": 6, "chunked": 3, "recurrent": 1}[kind]
    phi, values = maps.get("elu").phi, counted.with_ones(V)
    m, M = Q.shape[1], V.shape[1]
    state, outputs = np.zeros((m, M + 1)), []
    if kind == "chunked":
        C = size  # features of queries and keys, C×C weights, both products
        memory.hold(np.empty((C, 2 * m)), np.empty((C, C)), np.empty((C, 2 * (M + 1))))
    memory.hold(state)

    def normalised(mixed):
        return mixed[:, :-1] / mixed[:, -1:]

    if kind == "full":
        # The column of ones is created on the fly, not read from memory.
        state = memory.step(lambda k, v: phi(k).T @ counted.with_ones(v), K, V, out=True)
        output = memory.step(lambda q, s: normalised(phi(q) @ s), Q, state, out=True)
    else:

        def attend(q, k, v, before):
            weights = np.tril(phi(q) @ phi(k).T)
            after = before + phi(k).T @ counted.with_ones(v)
            return normalised(weights @ counted.with_ones(v) + phi(q) @ before), after

        for i in range(0, len(Q), size):
            rows = slice(i, i + size)
            out, state = memory.step(attend, Q[rows], K[rows], V[rows], state, out=True)
            outputs.append(out)
        output = np.concatenate(outputs)
    wanted = kt.linear_attention(Q, K, V, "elu", causal=kind != "full")
    np.testing.assert_allclose(output, wanted)
    numbers = LINEAR[kind]("elu").at(**SIZES, w=8, C=size)
    assert (memory.moved, memory.most) == (numbers.moved, numbers.memory)
    assert values.shape == (6, M + 1)


torch_cases = each(
    "text, outside",
    # outside: products that are not matrix products (those of poly, and the norms of favor), which
    # the counter does not see.
    [
        ("elu", 0),
        ("poly:degree=2", lambda n, D, train: costs_of_phi("poly:degree=2", n, D, train)),
        ("favor:features=16", lambda n, D, train: 2 * n * D * (3 if train else 1)),
    ],
)


def costs_of_phi(text, n, D, train):
    cost = costs.feature_cost(text)
    total = cost.products + cost.backward if train else cost.products
    return 2 * n * total.at(D=D)


@torch_cases
@each("train", [False, True])
@each("causal", [False, True])
def test_the_engine_does_the_multiply_adds_that_are_counted(text, outside, train, causal):
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    D, M, C = 6, 7, 32
    n = 100 if causal else 96  # causal: the padding of the last chunk is counted too
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(n, w, generator=generator, dtype=torch.float64, requires_grad=train)
        for w in (D, D, M)
    )
    with FlopCounterMode(display=False) as counter:
        output = kt.linear_attention(q, k, v, text, causal=causal, engine="chunked", chunk_size=C)
        if train:
            output.sum().backward()
    cost = (costs.chunked if causal else costs.linear)(text, train=train)
    expected = cost.at(n=n, D=D, M=M, C=C).multiply_adds
    padded = 128 if causal else n
    seen = expected - (outside(padded, D, train) if outside else 0)
    assert counter.get_total_flops() == 2 * seen


@each(
    "text",
    ["poly:degree=1", "poly:degree=3,constant=0", "taylor:order=4", "square"],
)
def test_products_of_a_map_forward_and_backward_are_those_of_torch(text):
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    class Products(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            result = function(*arguments, **(keywords or {}))
            if function.overloadpacket is torch.ops.aten.mul:
                self.count += result.numel()
            return result

    d = 4
    x = torch.randn(1, d, dtype=torch.float64, requires_grad=True)
    cost = costs.feature_cost(text)
    with Products() as forward:
        y = maps.get(text).phi(x)
    with Products() as backward:
        torch.autograd.grad(y, x, torch.ones_like(y))
    assert forward.count == cost.products.at(D=d)
    assert backward.count == cost.backward.at(D=d)


def test_numbers_of_the_lectures():
    assert costs.softmax().at(n=1000, D=32, M=80).multiply_adds == 112_000_000
    parts = costs.quadratic().at(n=1000, D=32, M=80).parts
    assert parts["U"] + parts["φ(Q)U"] == 89_760_000
    softmax = costs.softmax().at(n=4096, D=64, M=64)
    linear = costs.linear("elu").at(n=4096, D=64, M=64)
    assert costs.lab_ratio(4096, 64) == 64
    assert softmax.parts["QKᵀ"] == 1_073_741_824
    assert softmax.parts["QKᵀ"] / linear.parts["U"] == 64
    assert softmax.multiply_adds / linear.multiply_adds == pytest.approx(63.0, abs=0.02)
    assert costs.linear().multiply_adds == costs.linear().order() * 2 + costs.symbol("n") * (
        2 * costs.symbol("m")
    )


def test_multi_query_decoding_saves_traffic_and_no_arithmetic():
    d, h = symbols("d h")
    multi_head, multi_query = (
        costs.decoding(g).subs(k=d / h, v=d / h) for g in (h, Polynomial({(): 1}))
    )
    assert multi_head.order() == multi_query.order()
    assert str(multi_query.order("moved")) == "b·n·d/h + b·d + d²"
    assert str(multi_head.order("moved")) == "b·n·d + d²"


monomials = st.tuples(*[st.integers(0, 3)] * 3)


def build(exponents):
    x, y, z = symbols("n D M")
    return sum((x**a * y**b * z**c for a, b, c in exponents), Polynomial())


@given(monomials, st.lists(monomials, min_size=1, max_size=4), st.booleans())
def test_order_is_decided_as_by_trying_every_direction(one, bounds, related):
    relations = (("M", "D"),) if related else ()
    missing = costs.missing_terms(build([one]), build(bounds), relations)
    directions = [w for w in itertools.product(range(7), repeat=3) if not related or w[2] <= w[1]]

    def outgrows(w):
        return np.dot(w, one) > max(np.dot(w, b) for b in bounds)

    if missing:
        direction = missing[0][1]
        assert outgrows([direction.get(s, 0) for s in ("n", "D", "M")])
        assert not related or direction.get("M", 0) <= direction.get("D", 0)
    else:
        assert not any(map(outgrows, directions))


def test_means_bound_products():
    n, m = symbols("n m")
    assert costs.missing_terms(n * m, n**2 + m**2) == []
    assert costs.missing_terms(n**2 * m, n**3 + m**3) == []
    assert costs.missing_terms(n**2 * m**2, n**3 + m**3) != []


def test_leading_terms_drop_what_others_dominate_and_nothing_else():
    n, D, M = symbols("n D M")
    assert costs.leading(3 * n**2 * D + n**2 + 7 * n * M) == n**2 * D + n * M
    assert costs.leading(n * D + n * M, (("M", "D"),)) == n * D
    assert costs.leading(n + n) == n


@given(st.data())
def test_polynomials_compute_as_numbers_do(data):
    def draw():
        return build(data.draw(st.lists(monomials, min_size=1, max_size=3)))

    a, b = draw() - 2, 3 * draw() / 2
    values = {s: data.draw(st.integers(1, 9)) for s in ("n", "D", "M")}
    x, y = a.at(**values), b.at(**values)
    assert (a + b).at(**values) == x + y
    assert (a * b).at(**values) == x * y
    assert (a - b).at(**values) == x - y
    assert (a**3).at(**values) == x**3
    assert a.subs(n=b).at(**values) == a.at(**{**values, "n": y})
    assert a.total("n").at(**values) == sum(
        a.at(**{**values, "n": t}) for t in range(1, values["n"] + 1)
    )


def test_polynomials_are_written_as_people_write_them():
    n, D, C = symbols("n D C")
    assert str(2 * n**2 * D - n / 2 + 1) == "2·n²·D - n/2 + 1"
    assert str(n * D / (2 * C)) == "n·D/(2·C)"
    assert str(-n) == "-n"
    assert str(Polynomial()) == "0"
    assert repr(n) == "<n>"
    assert n * D == D * n
    assert hash(n * D) == hash(D * n)
    assert (n - n) == 0
    assert not n - n


def test_polynomials_refuse_what_they_cannot_do():
    n, D = symbols("n D")
    with pytest.raises(ValueError, match="single term"):
        n / (n + D)
    with pytest.raises(ValueError, match="value for D"):
        (n * D).at(n=2)
    assert (1 / n).at(n=4) == Fraction(1, 4)


@each("text", ["elu", "poly:degree=2", "favor:features=64"])
@each("D, M", [(4, 4), (16, 5), (3, 20)])
def test_crossover_is_where_the_counts_cross(text, D, M):
    slow, fast = costs.softmax(), costs.linear(text)
    found = costs.crossover(slow, fast, D=D, M=M)

    def gain(n):
        return slow.at(n=n, D=D, M=M).multiply_adds - fast.at(n=n, D=D, M=M).multiply_adds

    assert all(gain(found + step) > 0 for step in (0, 1, 10, 1000))
    assert found == 1 or gain(found - 1) <= 0


def test_no_crossover_where_there_is_none():
    assert costs.crossover(costs.linear("elu"), costs.softmax(), D=4, M=4) is None
    assert costs.crossover(costs.softmax(), costs.softmax(), D=4, M=4) is None


def test_summary_holds_every_row_and_its_ratio():
    sizes = costs.Sizes(n=4096, d=64, values=32)
    rows = {row.cost.name: row for row in costs.summary(sizes, ["elu", "poly:degree=2"])}
    assert list(rows) == [
        "projections",
        "softmax, weights formed",
        "softmax, streamed",
        "linear, elu",
        "linear, causal by chunks, elu",
        "linear, poly:degree=2",
        "linear, causal by chunks, poly:degree=2",
    ]
    assert rows["softmax, weights formed"].numbers.multiply_adds == 4096**2 * 96
    assert rows["linear, elu"].ratio == pytest.approx(4096 * 96 / (2 * 64 * 33))
    assert costs.paper_crossover(sizes, "elu") == 2 * 64 * 33 // 96 + 1
    decoding = [row.cost.name for row in costs.summary(sizes, decode=True)]
    assert len(decoding) == 6
    assert "multi-query decoding, n steps" in decoding


@each("text", ["elu@window=64,sinks=4", "softmax@window=64", "relu@sinks=2"])
def test_summary_has_windows_and_says_from_where_on_they_pay(text):
    assert costs.paper_crossover(costs.Sizes(n=4096, d=64), "softmax@window=8,sinks=8") == 16
    sizes = costs.Sizes(n=4096, d=64, values=32)
    rows = {row.cost.name: row for row in costs.summary(sizes, [text, "elu"])}
    assert list(rows)[3:] == [
        f"full, {text}", f"causal, {text}", "linear, elu", "linear, causal by chunks, elu"
    ]  # fmt: skip
    for kind in ("full", "causal"):
        count = costs.windowed(text, causal=kind == "causal").at(n=4096, D=64, M=32).multiply_adds
        assert rows[f"{kind}, {text}"].numbers.multiply_adds == count
        assert rows[f"{kind}, {text}"].ratio == pytest.approx(4096**2 * 96 / count)
    first = costs.paper_crossover(sizes, text)
    for n in (first - 1, first, first + 1):
        count = costs.windowed(text).at(n=n, D=64, M=32).multiply_adds
        assert (count < n * n * 96) == (n >= first)


SIZED = costs.Sizes(n=60, d=8)


@each(
    "call, says",
    [
        (lambda: costs.summary(SIZED, ["elu@window=64,sinks=4"]),
         "n ≥ window \\+ sinks = 68 tokens, not n = 60"),
        (lambda: costs.summary(SIZED, ["elu@window=4"], train=True),
         "not training or decoding; give a map without"),
        (lambda: costs.summary(SIZED, ["elu@sinks=1"], decode=True),
         "not training or decoding; give a map without"),
        (lambda: costs.summary(SIZED, ["elu@window=2,sinks=3"]), "at most window = 2 sinks, not 3"),
        (lambda: costs.summary(SIZED, ["softmax"]), "needs a window, such as softmax@window=64"),
        (lambda: costs.Sizes(n=0, d=4), "n must be"),
        (lambda: costs.Sizes(n=8, d=4, heads=8, kv_heads=3), "shared evenly"),
        (lambda: costs.Sizes(n=8, d=4, bytes=True), "bytes must be"),
        (lambda: costs.get("sofmax"), "did you mean 'softmax'"),
        (lambda: costs.state_bytes("softmax", d=16, values=16, heads=2), "keep every token"),
        (lambda: costs.state_bytes("elu@window=8,whole=1", d=16, values=16, heads=2),
         "keep every token"),
        (lambda: costs.crossover(costs.softmax(), costs.linear("elu"), D=4), "size for M"),
    ],
)  # fmt: skip
def test_what_is_not_counted_is_refused(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_every_algorithm_has_a_count():
    assert all(costs.get(name).multiply_adds for name in costs.algorithms())


def test_the_picture_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    sizes = costs.Sizes(n=64, d=8)
    timing = {"lengths": [8, 16], "softmax_ms": [1, 2], "linear_ms": [1, 1.5], "crossover": 8.0,
              "baseline": "compiled softmax"}  # fmt: skip
    figure = costs.figure(sizes, ["elu", "poly:degree=2"], {"elu": timing})
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == ["softmax", "elu", "poly:degree=2"]
    timed = [text.get_text() for text in figure.axes[1].get_legend().get_texts()]
    assert timed == ["compiled softmax", "elu"]
    near = costs.figure(sizes, ["elu@window=60,sinks=8"]).axes[0].get_lines()[1]
    assert (near.get_label(), near.get_xdata()[0]) == ("elu@window=60,sinks=8", 128)
    costs.save_figure(figure, tmp_path / "costs.svg")
    assert (tmp_path / "costs.svg").read_text().startswith("<?xml")
    assert [p.name for p in tmp_path.iterdir()] == ["costs.svg"]
    with pytest.raises(ValueError, match=r"\.png"):
        costs.save_figure(figure, tmp_path / "costs.doc")


@each("causal", [False, True])
@each("w, t", [(0, 0), (0, 2), (1, 0), (1, 1), (7, 3)])
def test_near_and_far_are_counted_as_a_loop_over_pairs_counts_them(w, t, causal):
    n, d, m, width = 23, 5, 5, 3
    near, reads, leaving = 0, set(), set()
    for i in range(n):
        for j in range(i + 1 if causal else n):
            if abs(i - j) < w or j < t:
                near += 1
            else:  # the sums before the window or those behind it; without a window one for all
                side = w > 0 and j > i
                reads.add((i, side))
                leaving.add((j, side))
    found = costs.windowed(f"elu@window={w},sinks={t}" if w or t else "elu", causal=causal)
    parts = found.at(n=n, D=d, M=width).parts
    assert parts["near QKᵀ"] == near * d
    assert parts["near weights·V"] == near * width
    assert parts["φ(K)ᵀV into state"] == len(leaving) * m * (width + 1)
    assert parts["φ(Q)·state"] == len(reads) * m * (width + 1)


@each("causal", [False, True])
def test_heads_that_differ_cost_the_mean_of_their_heads(causal):
    n, d, width = 23, 5, 3
    found = costs.windowed("softmax@window=4+whole+7,sinks=1,whole=0", causal=causal, heads=3)
    near = 0
    for head in range(3):
        for i in range(n):
            for j in range(i + 1 if causal else n):
                near += head < 2 or abs(i - j) < 7 or j < 1
    numbers = found.at(n=n, D=d, M=width, B=8)
    assert numbers.multiply_adds == Fraction(near, 3) * (d + width)
    last = costs.windowed("softmax@window=7,sinks=1", causal=causal).at(n=n, D=d, M=width)
    whole = 4 * n * (d + width) if causal else 4 * (2 * n + 8**2)
    assert numbers.memory == Fraction(2 * whole + last.memory, 3)
    sizes = costs.Sizes(n=64, d=8, heads=6, kv_heads=3)
    rows = costs.summary(sizes, ["elu@window=8,whole=0+1+2"])
    assert rows[3].numbers.multiply_adds == rows[1].numbers.multiply_adds
    with pytest.raises(ValueError, match="only 2 key–value heads"):
        costs.summary(costs.Sizes(n=64, d=8, heads=2), ["elu@window=8,whole=5"])


def test_the_window_alone_costs_no_features_and_no_window_is_linear_attention():
    alone = costs.windowed("softmax@window=8").at(n=100, D=16, M=16)
    assert {name for name, count in alone.parts.items() if count} == {
        "near QKᵀ",
        "near weights·V",
    }
    values = {"n": 100, "D": 16, "M": 16}
    linear = costs.linear("elu").at(**values).multiply_adds
    assert costs.windowed("elu", causal=True).at(**values).multiply_adds == linear
    assert costs.windowed("elu").at(**values).multiply_adds == linear


def test_ranks_are_compared_with_a_ring(run, tmp_path):
    code, out, _ = run("costs", "--ranks", 6, "--n", 65536, "--map", "elu", "--heads", 2, "--json")
    assert code == 0
    found = json.loads(out)["rows"]
    assert [row["ranks"] for row in found["linear, elu"]] == [1, 2, 4, 6]
    state = 2 * 8 * 64 * 65
    assert [row["sent"] for row in found["linear, elu"]] == [r * (state + 56) for r in (0, 1, 3, 5)]
    ring = found["ring, softmax"]
    assert ring[2]["sent"] == 3 * 2 * 65536 // 4 * 128 * 4
    assert found["linear, elu"][0]["efficiency"] == ring[0]["efficiency"] == 1
    assert run("costs", "--ranks", 2, "--train")[0] == 2
    assert run("costs", "--ranks", 2, "--bandwidth", 0)[0] == 2
    code, _, said = run("costs", "--latency", 5)
    assert code == 2
    assert "--latency needs --ranks" in said
    picture = tmp_path / "ranks.png"
    assert run("costs", "--ranks", 4, "--plot", picture)[0] == 0
    assert picture.stat().st_size > 1000


def test_heads_that_differ_cost_ranks_the_sum_of_their_heads():
    sizes = {"n": 4096, "d": 16}
    mixed = costs.context_parallel("elu@window=5+0+9,sinks=2", 4, heads=3, **sizes)
    each = [
        costs.context_parallel(f"elu@window={w},sinks=2", 4, heads=1, **sizes) for w in (5, 0, 9)
    ]
    assert mixed.sent == sum(x.sent for x in each)
    assert mixed.compute == pytest.approx(sum(x.compute for x in each))
    assert mixed.exposed == pytest.approx(sum(x.exposed for x in each))


def test_a_ring_waits_where_its_blocks_are_small():
    slow = costs.Machine(bandwidth=1e9, latency=1e-3, flops=1e15)
    found = costs.ring(4, slow, n=4096, d=64)
    step, block = 2 * 1024 * 1024 * 128 / 2 / 1e15, 1024 * 128 * 4 / 1e9
    assert found.exposed == pytest.approx(3 * (1e-3 + block - step))
