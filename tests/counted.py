"""Attention as plain loops that count every operation. The costs must equal these counts."""

import math

import numpy as np


class Meter:
    """Counts multiplications (with the addition that may follow) and all other operations."""

    def __init__(self):
        self.products = self.elementwise = 0

    def dot(self, a, b):
        total = 0.0
        for x, y in zip(a, b, strict=True):
            self.products += 1
            total += x * y
        return total

    def multiply(self, a, b):
        self.products += 1
        return a * b

    def accumulate(self, total, a, b):
        self.products += 1
        return total + a * b

    def __getattr__(self, name):
        """exp, max, sub, add, div, neg, cos, sin: one elementwise operation each."""
        functions = {
            "exp": math.exp,
            "cos": math.cos,
            "sin": math.sin,
            "neg": lambda x: -x,
            "max": max,
            "sub": lambda x, y: x - y,
            "add": lambda x, y: x + y,
            "div": lambda x, y: x / y,
        }
        function = functions[name]

        def counted(*arguments):
            self.elementwise += 1
            return function(*arguments)

        return counted


def softmax(meter, Q, K, V):
    """softmax(QKᵀ/√D)V, row by row."""
    root, rows = math.sqrt(Q.shape[1]), []
    for query in Q:
        q = [meter.div(x, root) for x in query]
        scores = [meter.dot(q, k) for k in K]
        top, total = -math.inf, 0.0
        for score in scores:
            top = meter.max(top, score)
        weights = [meter.exp(meter.sub(score, top)) for score in scores]
        for weight in weights:
            total = meter.add(total, weight)
        rows.append([meter.div(meter.dot(weights, column), total) for column in V.T])
    return np.array(rows)


def with_ones(V):
    return np.concatenate([V, np.ones((len(V), 1))], axis=1)


def read(meter, query, state):
    mixed = [meter.dot(query, column) for column in state.T]
    return [meter.div(x, mixed[-1]) for x in mixed[:-1]]


def write(meter, state, key, value):
    for i, f in enumerate(key):
        for j, x in enumerate(value):
            state[i, j] = meter.accumulate(state[i, j], f, x)


def linear(meter, phi, Q, K, V, causal=False):
    """U and Z token by token, then φ(q)U / φ(q)Z; phi(meter, x) counts too."""
    values, rows, state = with_ones(V), [], None
    for i, (k, v) in enumerate(zip(K, values, strict=True)):
        key = phi(meter, k)
        state = np.zeros((len(key), len(v))) if state is None else state
        write(meter, state, key, v)
        if causal:
            rows.append(read(meter, phi(meter, Q[i]), state))
    if not causal:
        rows = [read(meter, phi(meter, q), state) for q in Q]
    return np.array(rows)


def chunked(meter, phi, Q, K, V, size):
    """Causal attention by chunks. The C×C weights above the diagonal are computed and masked."""
    values = with_ones(V)
    state, rows = None, []
    for start in range(0, len(K), size):
        keys = [phi(meter, k) for k in K[start : start + size]]
        queries = [phi(meter, q) for q in Q[start : start + size]]
        chunk = values[start : start + size]
        state = np.zeros((len(keys[0]), chunk.shape[1])) if state is None else state
        for i, query in enumerate(queries):
            weights = [meter.dot(query, key) for key in keys]
            weights = [
                meter.max(w, w) if j <= i else meter.max(0, 0) for j, w in enumerate(weights)
            ]
            inside = [meter.dot(weights, column) for column in chunk.T]
            before = [meter.dot(query, column) for column in state.T]
            mixed = [meter.add(a, b) for a, b in zip(inside, before, strict=True)]
            rows.append([meter.div(x, mixed[-1]) for x in mixed[:-1]])
        sums = np.zeros_like(state)
        for key, value in zip(keys, chunk, strict=True):
            write(meter, sums, key, value)
        for i in range(state.shape[0]):
            for j in range(state.shape[1]):
                state[i, j] = meter.add(state[i, j], sums[i, j])
    return np.array(rows)


def project(meter, x, W):
    return np.array([[meter.dot(row, column) for column in W.T] for row in x])


def decode(meter, x, weights, cache_k, cache_v, heads, shared):
    """One step with a cache: x (b, d); caches (b, n, g, k or v), the new token already in them."""
    b, k, v = len(x), cache_k.shape[-1], cache_v.shape[-1]
    q = project(meter, x, weights["q"]).reshape(b, heads, k)
    project(meter, x, weights["k"])
    project(meter, x, weights["v"])
    outputs = np.zeros((b, heads, v))
    for i in range(b):
        for h in range(heads):
            group = h // (heads // shared)
            outputs[i, h] = softmax(
                meter, q[i, h][None], cache_k[i, :, group], cache_v[i, :, group]
            )[0]
    return project(meter, outputs.reshape(b, -1), weights["o"])


def linear_decode(meter, phi, x, weights, state, heads, shared):
    """One step of linear attention: state (b, g, m, M + 1) is read and written."""
    b, _, _, width = state.shape
    q = project(meter, x, weights["q"]).reshape(b, heads, -1)
    k = project(meter, x, weights["k"]).reshape(b, shared, -1)
    v = project(meter, x, weights["v"]).reshape(b, shared, width - 1)
    outputs = np.zeros((b, heads, width - 1))
    for i in range(b):
        for g in range(shared):
            write(meter, state[i, g], phi(meter, k[i, g]), [*v[i, g], 1.0])
        for h in range(heads):
            group = h // (heads // shared)
            outputs[i, h] = read(meter, phi(meter, q[i, h]), state[i, group])
    return project(meter, outputs.reshape(b, -1), weights["o"])


def delta_token(meter, S, q, k, v, beta, log_decay):
    """One token of the gated delta rule; S (D, M) is changed."""
    rate = meter.exp(log_decay)
    for i, j in np.ndindex(S.shape):
        S[i, j] = meter.multiply(S[i, j], rate)
    answers = [meter.dot(k, column) for column in S.T]
    u = [meter.multiply(beta, meter.sub(x, y)) for x, y in zip(v, answers, strict=True)]
    write(meter, S, k, u)
    return [meter.dot(q, column) for column in S.T]


def delta_recurrent(meter, Q, K, V, beta, log_decay):
    """The gated delta rule token by token."""
    S, root, rows = np.zeros((K.shape[1], V.shape[1])), math.sqrt(K.shape[1]), []
    for t in range(len(K)):
        q = [meter.div(x, root) for x in Q[t]]
        rows.append(delta_token(meter, S, q, K[t], V[t], beta[t], log_decay[t]))
    return np.array(rows)


def delta_chunked(meter, Q, K, V, beta, log_decay, size):
    """The gated delta rule by chunks: only the triangles of C×C weights are computed."""
    S, root, rows = np.zeros((K.shape[1], V.shape[1])), math.sqrt(K.shape[1]), []
    for start in range(0, len(K), size):
        here = range(start, start + size)
        total, b = 0.0, {}
        for i in here:
            b[i] = total = meter.add(total, log_decay[i])
        U, keys = {}, []
        for i in here:
            q = [meter.div(x, root) for x in Q[i]]
            entry = meter.exp(b[i])
            rate = {j: meter.exp(meter.sub(b[i], b[j])) for j in range(start, i)}
            before = [meter.multiply(entry, meter.dot(K[i], column)) for column in S.T]
            u = [
                meter.multiply(beta[i], meter.sub(x, y)) for x, y in zip(V[i], before, strict=True)
            ]
            for j in range(start, i):
                a = meter.multiply(beta[i], meter.multiply(rate[j], meter.dot(K[i], K[j])))
                u = [meter.accumulate(x, -a, y) for x, y in zip(u, U[j], strict=True)]
            U[i] = u
            o = [meter.multiply(entry, meter.dot(q, column)) for column in S.T]
            for j in range(start, i + 1):
                p = meter.dot(q, K[j])
                p = p if j == i else meter.multiply(rate[j], p)
                o = [meter.accumulate(x, p, y) for x, y in zip(o, U[j], strict=True)]
            rows.append(o)
        for j in here:
            leave = meter.exp(meter.sub(total, b[j]))
            keys.append([meter.multiply(leave, x) for x in K[j]])
        through = math.exp(total)  # the entry of the last token
        for i, j in np.ndindex(S.shape):
            S[i, j] = meter.multiply(S[i, j], through)
        for j, key in zip(here, keys, strict=True):
            write(meter, S, key, U[j])
    return np.array(rows)


def delta_decode(meter, x, weights, state, shared):
    """One step of the gated delta rule: state (b, h, k, M) is changed; g query and key heads."""
    b, heads, width, M = state.shape
    q, k = (project(meter, x, weights[name]).reshape(b, shared, width) for name in "qk")
    v = project(meter, x, weights["v"]).reshape(b, heads, M)
    beta, decay = (project(meter, x, weights[name]) for name in ("beta", "decay"))
    root = math.sqrt(width)
    q = np.array([meter.div(y, root) for y in q.ravel()]).reshape(q.shape)
    outputs = np.zeros((b, heads, M))
    for i, h in np.ndindex(b, heads):
        group = h // (heads // shared)
        outputs[i, h] = delta_token(
            meter, state[i, h], q[i, group], k[i, group], v[i, h], beta[i, h], -abs(decay[i, h])
        )
    return project(meter, outputs.reshape(b, -1), weights["o"])


class Number:
    """A float that counts its operations, for maps that run on object arrays."""

    def __init__(self, value, meter):
        self.value, self.meter = value, meter

    def _do(self, value, product=False):
        if product:
            self.meter.products += 1
        else:
            self.meter.elementwise += 1
        return Number(value, self.meter)

    def __mul__(self, other):
        return self._do(self.value * plain(other), product=True)

    def __add__(self, other):
        return self._do(self.value + plain(other))

    def __sub__(self, other):
        return self._do(self.value - plain(other))

    def __truediv__(self, other):
        return self._do(self.value / plain(other))

    def exp(self):
        return self._do(math.exp(self.value))

    def __le__(self, other):
        self.meter.elementwise += 1
        return self.value <= plain(other)

    def __ge__(self, other):
        self.meter.elementwise += 1
        return self.value >= plain(other)

    __rmul__, __radd__ = __mul__, __add__


def plain(x):
    return x.value if isinstance(x, Number) else x


class Memory:
    """Counts the numbers that steps move, and the most that they hold at once."""

    def __init__(self):
        self.moved = self.held = self.most = 0

    def step(self, function, *reads, out=False):
        """Run one step. Its result counts as written, and as held unless it is an output."""
        result = function(*reads)
        results = result if isinstance(result, tuple) else (result,)
        self.moved += sum(x.nbytes for x in (*reads, *results))
        if not out:
            self.hold(*results)
        return result

    def hold(self, *arrays):
        self.held += sum(x.nbytes for x in arrays)
        self.most = max(self.most, self.held)

    def free(self, *arrays):
        self.held -= sum(x.nbytes for x in arrays)
