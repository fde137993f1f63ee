"""Wrong and right statements from teaching material, the source of `docs/wrong_claims.md`.

Each wrong statement is given in words and as claims that `prove` refutes; the refutation must
contain certain words. The corrected form is given as claims that `prove` accepts.
"""

from __future__ import annotations

from typing import NamedTuple


class Claim(NamedTuple):
    """A claim, whether it holds, and words that its verdict must contain."""

    kind: str
    text: str
    holds: bool
    because: str = ""


class Statement(NamedTuple):
    """A wrong statement and the truth, in words and as claims."""

    number: int
    statement: str
    truth: str
    claims: tuple[Claim, ...]


def _wrong(kind: str, text: str, because: str) -> Claim:
    return Claim(kind, text, False, because)


def _right(kind: str, text: str, because: str = "") -> Claim:
    return Claim(kind, text, True, because)


STATEMENTS = (
    Statement(
        1,
        "φ = (xᵢxⱼ) for i ≤ j, without √2, gives (q·k)².",
        "It gives ½[(q·k)² + Σqᵢ²kᵢ²]. Each product xᵢxⱼ with i < j occurs twice in the square, so "
        "its feature needs a factor √2.",
        (
            _wrong("map", "[x[i]*x[j] for i<=j] gives (q·k)**2", "scale this feature by √2"),
            _right("map", "[x[i]**2 for i, √2*x[i]*x[j] for i<j] gives (q·k)**2", "every d"),
            _right("map", "[x[i]*x[j] for i<=j] gives ((q·k)**2 + sum(i, q[i]**2*k[i]**2))/2"),
        ),
    ),
    Statement(
        2,
        "Σ over i ≤ j of 2qᵢqⱼkᵢkⱼ, plus Σqᵢ²kᵢ², is (q·k)².",
        "The first sum must run over i < j. With i ≤ j the diagonal is counted three times.",
        (
            _wrong(
                "identity",
                "sum(i<=j, 2*q[i]*q[j]*k[i]*k[j]) + sum(i, q[i]**2*k[i]**2) = (q·k)**2",
                "left has 3, right has 1",
            ),
            _right(
                "identity",
                "sum(i<j, 2*q[i]*q[j]*k[i]*k[j]) + sum(i, q[i]**2*k[i]**2) = (q·k)**2",
            ),
        ),
    ),
    Statement(
        3,
        "φ = [1, √2x, xᵢxⱼ (i ≤ j)] gives (q·k + 1)²; so do [1, x, xᵢ²] and [1, x, xᵢ², xᵢxⱼ]; so "
        "does scikit-learn's PolynomialFeatures.",
        "The features are 1, √2·xᵢ, xᵢ² and √2·xᵢxⱼ (i < j), or 1, √2·xᵢ and all d² products "
        "xᵢxⱼ. For q = (1, 2) and k = (3, 4) the kernel is 144, but these maps give 120, 85 and "
        "109.",
        (
            _wrong(
                "map", "[1, √2*x, x[i]*x[j] for i<=j] gives (q·k + 1)**2", "= 120, kernel = 144"
            ),
            _wrong(
                "map", "[1, x, x[i]**2 for i] gives (q·k + 1)**2 for d = 2", "= 85, kernel = 144"
            ),
            _wrong(
                "map",
                "[1, x, x[i]*x[j] for i<=j] gives (q·k + 1)**2 for d = 2",
                "= 109, kernel = 144",
            ),
            _right(
                "map",
                "[1, √2*x, x[i]**2 for i, √2*x[i]*x[j] for i<j] gives (q·k + 1)**2",
                "every d",
            ),
            _right("map", "[1, √2*x, x[i]*x[j] for i, j] gives (q·k + 1)**2", "every d"),
        ),
    ),
    Statement(
        4,
        "The quadratic kernel is 1 + q·k + (q·k)², with φ = [1, x].",
        "The quadratic kernel is (q·k + 1)² = 1 + 2q·k + (q·k)². The map [1, x] gives 1 + q·k.",
        (
            _wrong("identity", "1 + q·k + (q·k)**2 = (q·k + 1)**2", "left has 1, right has 2"),
            _wrong("map", "[1, x] gives 1 + q·k + (q·k)**2", "is missing"),
            _right("identity", "1 + 2*(q·k) + (q·k)**2 = (q·k + 1)**2"),
            _right("map", "[1, x] gives 1 + q·k"),
        ),
    ),
    Statement(
        5,
        "The feature dimension of the quadratic kernel is d + 1.",
        "It is C(d+2, 2) = (d+1)(d+2)/2. No exact map has fewer features, because this is the rank "
        "of the kernel's coefficients.",
        (
            _wrong("dimension", "(q·k + 1)**2 needs d + 1 features", "at least d²/2 + 3·d/2 + 1"),
            _right("dimension", "(q·k + 1)**2 needs C(d + 2, 2) features"),
            _right("dimension", "poly:degree=2 has (d + 1)*(d + 2)/2 features"),
        ),
    ),
    Statement(
        6,
        "One common factor α on x repairs φ = [1, x, xᵢxⱼ (i ≤ j)].",
        "That would need α² = 2 (linear terms), α⁴ = 1 (squares) and α⁴ = 2 (products). Each kind "
        "of feature needs its own factor.",
        (
            _wrong(
                "map",
                "[1, a*x, a**2*x[i]*x[j] for i<=j] gives (q·k + 1)**2 for some a for d = 2",
                "x₁·x₂ needs a⁴ = 2",
            ),
            _right(
                "map",
                "[1, a*x, b*x[i]**2 for i, c*x[i]*x[j] for i<j] gives (q·k + 1)**2"
                " for some a, b, c for d = 2",
                "√2",
            ),
        ),
    ),
    Statement(
        7,
        "A sum of positive similarities can be zero; sim < 0 everywhere is not sufficient for a "
        "finite output.",
        "A sum of numbers with the same sign has that sign, so either condition suffices.",
        (
            _wrong("sign", "exp(q·k) can vanish", "(0, ∞)"),
            _wrong("sign", "-exp(q·k) can vanish", "negative"),
            _right("sign", "sim > 0 suffices"),
            _right("sign", "sim < 0 suffices"),
        ),
    ),
    Statement(
        8,
        "Similarities that are not all zero suffice for a finite output.",
        "Similarities of both signs can cancel: 1 and −1. It suffices that all are ≥ 0 and one is "
        "> 0.",
        (
            _wrong("sign", "some sim != 0 suffices", "they can cancel"),
            _right("sign", "sim >= 0 and some sim > 0 suffices"),
            _right("sign", "some sim != 0 is necessary"),
        ),
    ),
    Statement(
        9,
        "(1/√D)·φ(Q)φ(K)ᵀV equals the normalised kernel attention; so does softmax(φ(Q)φ(K)ᵀ/√D)V.",
        "The normaliser is the sum of the similarities aⱼ of the row, not √D, and no softmax is "
        "applied on top.",
        (
            _wrong(
                "identity",
                "sum(j, a[j]*v[j])/√D = sum(j, a[j]*v[j])/sum(j, a[j])",
                "the sides differ at a point",
            ),
            _wrong(
                "identity",
                "sum(j, exp(a[j]/√D)*v[j])/sum(j, exp(a[j]/√D)) = sum(j, a[j]*v[j])/sum(j, a[j])",
                "the sides differ at a point (d = 2)",
            ),
            _right(
                "identity",
                "sum(j, a[j]/sum(i, a[i])*v[j]) = sum(j, a[j]*v[j])/sum(j, a[j])",
            ),
        ),
    ),
    Statement(
        10,
        "φ(Q)ᵀS, with φ(Q) of shape n×m, has the right shape.",
        "The right product is φ(Q)S: n×m times m×M is n×M.",
        (
            _wrong("shapes", "phi.T @ S -> n M where phi: n m, S: m M", "n and m do not contract"),
            _right("shapes", "phi @ S -> n M where phi: n m, S: m M"),
            _right("shapes", "phi.T @ V -> m M where phi: n m, V: n M"),
        ),
    ),
    Statement(
        11,
        "Linearised quadratic attention costs O(N²D + N²M), or O(n²d²); its space is Θ(nd³).",
        "With m = (D+1)(D+2)/2 features it costs Θ(n·D²·M), which is Θ(n·D³) for M = D. Its state "
        "takes Θ(D²·M). There is no n². (O is an upper bound and may be loose; Θ is the order.)",
        (
            _wrong("cost", "quadratic: O(N**2*D + N**2*M)", "the term n·D²·M is missing"),
            _wrong("cost", "quadratic: O(n**2*d**2)", "the term n·d³ is missing"),
            _wrong("cost", "quadratic memory: Theta(n*d**3)", "too loose"),
            _right("cost", "quadratic: Theta(n*D**2*M)"),
            _right("cost", "quadratic: Theta(n*D**3) where M = D"),
            _right("cost", "quadratic memory: Theta(D**2*M)"),
        ),
    ),
    Statement(
        12,
        "With C features and values of width d, the loop for U costs Θ(N·C·d²); φ(q)·Z costs O(d); "
        "computing all φ costs Θ(n²d²).",
        "Each step of the loop adds an outer product of C·d numbers: Θ(N·C·d) in all (n·m·M here). "
        "φ(q)·Z takes one product per feature, which is Θ(d²) for the quadratic kernel. Computing "
        "all φ takes Θ(n·d²).",
        (
            _wrong("cost", "state loop: Theta(n*m*M**2)", "too loose"),
            _wrong("cost", "quadratic normaliser: O(d)", "the term d² is missing"),
            _wrong("cost", "quadratic features: Theta(n**2*d**2)", "too loose"),
            _right("cost", "state loop: Theta(n*m*M)"),
            _right("cost", "quadratic normaliser: Theta(d**2)"),
            _right("cost", "quadratic features: Theta(n*d**2)"),
        ),
    ),
    Statement(
        13,
        "A multi-query decoding step costs O(bd + bhd), O(b·n·d), or Θ(b·n·d²) arithmetic; its "
        "traffic is O(bnd); multi-query makes attention O(n²D/h).",
        "The arithmetic is Θ(b·d² + b·n·d), as for multi-head attention. Sharing keys saves "
        "memory traffic, which falls to Θ(d² + b·d + b·n·d/h). It saves no scores, so attention "
        "stays Θ(n²·d + n·d²).",
        (
            _wrong("cost", "multi-query decoding: O(b*d + b*h*d)", "b·n·d + b·d² are missing"),
            _wrong("cost", "multi-query decoding: O(b*n*d)", "the term b·d² is missing"),
            _wrong("cost", "multi-query decoding: Theta(b*n*d**2)", "too loose"),
            _wrong("cost", "multi-query decoding traffic: O(b*n*d)", "the term d² is missing"),
            _wrong("cost", "multi-query attention: O(n**2*d/h)", "n²·d"),
            _right("cost", "multi-query decoding: Theta(b*d**2 + b*n*d)"),
            _right("cost", "multi-head decoding: Theta(b*d**2 + b*n*d)"),
            _right("cost", "multi-query decoding traffic: Theta(d**2 + b*d + b*n*d/h)"),
            _right("cost", "grouped decoding traffic: Theta(d**2 + b*d + b*n*g*k)"),
            _right("cost", "multi-query attention: Theta(n**2*d + n*d**2)"),
        ),
    ),
    Statement(
        14,
        'einsum("bd,dq->bhq") computes multi-head queries; bd,dv->bhv is right for shared values; '
        "bd,dq->bdq projects.",
        "In the first two, no input has the index h. Multi-head queries are bd,hdk->bhk; shared "
        "values are bd,dv->bv. The third contracts nothing.",
        (
            _wrong("einsum", "bd,dq->bhq", "the index h of the output comes from nowhere"),
            _wrong("einsum", "bd,dv->bhv", "the index h of the output comes from nowhere"),
            _wrong("einsum", "bd,dq->bdq", "nothing is contracted: d stays in the output"),
            _right("einsum", "bd,hdk->bhk"),
            _right("einsum", "bd,dv->bv"),
            _right("einsum", "bd,dk->bk for b d, d k"),
        ),
    ),
    Statement(
        15,
        "For M ≪ D the term n²M dominates softmax attention.",
        "The term n²D dominates.",
        (
            _wrong("cost", "softmax: O(n**2*M) where M << D", "the term n²·D is missing"),
            _right("cost", "softmax: Theta(n**2*D) where M << D"),
        ),
    ),
    Statement(
        16,
        "The row softmax is O(N).",
        "One row takes O(N), and there are N rows.",
        (
            _wrong("cost", "row softmax: O(N)", "the term n² is missing"),
            _right("cost", "row softmax: Theta(N**2)"),
        ),
    ),
    Statement(
        17,
        "The scale that gives q·k unit variance is √d; the unscaled variance is 1/d.",
        "For independent N(0, 1) coordinates the variance is Var[q·k] = d, so the scale is 1/√d.",
        (
            _wrong(
                "moments",
                "Var[s*(q·k)] = 1 where s = √d, mu = 0, sigma = 1",
                "differ by d² - 1",
            ),
            _wrong("moments", "Var[q·k] = 1/d where mu = 0, sigma = 1", "Var[q·k] is d"),
            _right("moments", "Var[s*(q·k)] = 1 where s = 1/√d, mu = 0, sigma = 1"),
            _right("moments", "Var[q·k] = d where mu = 0, sigma = 1"),
        ),
    ),
    Statement(
        18,
        "For independent X and Y, Var(XY) = Var(X)·Var(Y).",
        "This holds only if both means are 0. In general Var(XY) = σx²σy² + μx²σy² + μy²σx².",
        (
            _wrong("moments", "Var[x*y] = Var[x]*Var[y]", "right where mu_x = 0, mu_y = 0"),
            _right("moments", "Var[x*y] = Var[x]*Var[y] where E[x] = 0, E[y] = 0"),
            _right(
                "moments",
                "Var[x*y] = Var[x]*Var[y] + E[x]**2*Var[y] + E[y]**2*Var[x]",
            ),
        ),
    ),
    Statement(
        19,
        "A scale s > 0 makes scores positive.",
        "It keeps the order of scores, not their sign. A score that is larger by t stays larger, "
        "by s·t.",
        (
            _wrong("sign", "s*(q·k) > 0 where s > 0", "it is negative here"),
            _right("sign", "s*t > 0 where s > 0, t > 0"),
        ),
    ),
    Statement(
        20,
        "Argmax attention trains the selected key, or the query.",
        "The choice is piecewise constant, so the gradient to q and to every k, including the "
        "selected one, is 0 almost everywhere. Only the selected value receives a gradient.",
        (
            _wrong("gradient", "hard trains the selected key", "the gradient to every k is 0"),
            _wrong("gradient", "hard trains the query", "the gradient to every q is 0"),
            _right("gradient", "hard trains the selected value"),
            _right("gradient", "softmax trains the key"),
        ),
    ),
    Statement(
        21,
        "Values wider than keys need only W_v and W_o changed, or a doubled d_k in split.",
        "Splitting must use the width of the array: n×h·v is split into h heads of width v, and "
        "n×h·k into h heads of width k.",
        (
            _wrong("shapes", "split(V, h, k) -> h n k where V: n h*v", "cannot be split into"),
            _wrong("shapes", "split(K, h, 2*k) -> h n 2*k where K: n h*k", "cannot be split into"),
            _right("shapes", "split(V, h, v) -> h n v where V: n h*v"),
            _right("shapes", "combine(O) -> n h*v where O: h n v"),
        ),
    ),
    Statement(
        22,
        "Squared ReLU is always positive; cos/sin features are always positive.",
        "Squared ReLU is non-negative, but it is 0 for q = 1, k = −1. cos/sin features can be "
        "negative. ELU + 1 and exp are positive.",
        (
            _wrong("sign", "relu2 > 0", "0 is reached"),
            _wrong("sign", "[cos(x), sin(x)] > 0", "it is negative here"),
            _wrong("sign", "favor:features=16,kind=trig > 0", "it is negative here"),
            _right("sign", "relu2 >= 0"),
            _right("sign", "elu > 0"),
            _right("sign", "favor:features=16 > 0"),
        ),
    ),
    Statement(
        23,
        "Random features approximate softmax better than ELU + 1 at any m; the ranking is ELU > "
        "ReLU² > ReLU.",
        "On the Gaussian data of lab 03 (d = 64), FAVOR+ loses up to m = 4096, and the ranking is "
        "ReLU > ReLU² > ELU. This was measured and holds only for that data.",
        (
            _wrong("ranking", "favor:features=64 beats elu", "elu is closer to softmax"),
            _wrong("ranking", "favor:features=4096 beats elu", "elu is closer to softmax"),
            _wrong("ranking", "elu beats relu2 beats relu", "relu2 is closer to softmax"),
            _right("ranking", "relu beats relu2 beats elu beats favor:features=4096"),
        ),
    ),
    Statement(
        24,
        "The Taylor map of order 2 maps ℝᵈ to a space of d² dimensions.",
        "It has C(d+2, 2) features, or 1 + d + d² if xᵢxⱼ and xⱼxᵢ are counted separately.",
        (
            _wrong("dimension", "taylor:order=2 has d**2 features", "it has d²/2 + 3·d/2 + 1"),
            _right("dimension", "taylor:order=2 has C(d + 2, 2) features"),
            _right("dimension", "[1, x, x[i]*x[j]/√2 for i, j] has 1 + d + d**2 features"),
            _right("map", "[1, x, x[i]*x[j]/√2 for i, j] gives 1 + q·k + (q·k)**2/2", "every d"),
        ),
    ),
    Statement(
        26,
        'A "positive definite" kernel is one with positive values.',
        "It is a kernel whose Gram matrices have no negative eigenvalue. elu(q·k) + 1 has positive "
        "values but is not such a kernel; q·k is one, but takes negative values.",
        (
            _wrong("psd", "elu(q·k) + 1", "the eigenvalue -0.0114"),
            _wrong("sign", "q·k >= 0", "it is negative here"),
            _right("sign", "elu(q·k) + 1 > 0"),
            _right("psd", "q·k", "Gram matrix"),
        ),
    ),
)

PROSE = {
    25: (
        "elu(q·k) + 1 is Performer's similarity.",
        "Katharopoulos et al. 2020 apply ELU + 1 elementwise: φ(x) = elu(x) + 1. Performer "
        "(Choromanski et al. 2021) uses exponential random features. Neither uses (q·k + 1)².",
    ),
    27: (
        "cosFormer is cosine similarity.",
        "Its cosine depends on the positions: cos(π(i−j)/2N). The similarity is ReLU(q)·ReLU(k) "
        "times that cosine (Qin et al. 2022).",
    ),
    28: (
        "RWKV and Mamba are implicit convolutions.",
        "They are recurrences. In Mamba, and in RWKV from version 6 on, the decay depends on the "
        "input, so no fixed convolution equals them. Among Hyena, RWKV and Mamba, only Hyena is an "
        "implicit long convolution.",
    ),
    29: (
        "Linformer drops the softmax; Longformer and Reformer need n².",
        "Linformer keeps the softmax and projects keys and values to a fixed length. Longformer "
        "(windows) and Reformer (hashing) both avoid n².",
    ),
    30: (
        "The MSE between attention weights is 0.0823 (a sample figure of lab 03).",
        "The MSE of two row-stochastic 100×100 matrices cannot be that large. The squared distance "
        "of two rows is at most 2, so the MSE is at most 2/100 = 0.02.",
    ),
}

FURTHER = (
    _right("map", "identity gives q·k"),
    _right("map", "poly:degree=3 gives (q·k + 1)**3"),
    _right("map", "poly:degree=2,constant=0.5 gives (q·k + 0.5)**2"),
    _wrong("map", "poly:degree=2 gives (q·k)**2", "drop this feature"),
    _right("map", "[c, √2*√c*x, x[i]*x[j] for i, j] gives (q·k + c)**2"),
    _wrong("map", "[√c, √2*x, x[i]*x[j] for i, j] gives (q·k + c)**2", "scale this feature"),
    _right("map", "taylor:order=3 gives 1 + q·k + (q·k)**2/2 + (q·k)**3/6"),
    _wrong("map", "taylor:order=2 gives exp(q·k)", "first differ at degree 6"),
    _wrong("map", "square gives (q·k)**2", "the feature √2·x₁·x₂ is missing"),
    _right("map", "exp gives sum(i, exp(q[i] + k[i]))"),
    _wrong("map", "exp gives exp(q·k)", "first differ at degree 1"),
    _wrong("map", "focused:power=2 gives sum(i, relu(q[i])*relu(k[i]))", "(d = 2)"),
    _wrong("map", "elu gives elu(q·k) + 1", "the sides differ at"),
    _right("map", "relu gives sum(i, relu(q[i])*relu(k[i]))", "every d"),
    _right("map", "[cos(x[1]), sin(x[1])] gives cos(q[1] - k[1]) for d = 1"),
    _right("map", "favor:features=16,orthogonal=false gives exp(q·k) for d = 3", "theory"),
    _right("map", "favor:features=16,kind=hyperbolic gives exp(q·k) for d = 3", "on average"),
    _wrong("map", "favor:features=16 gives exp(2*(q·k)) for d = 3", "the mean is not the kernel"),
    _wrong("map", "[x, x] gives q·k", "scale its 2 features together by √2/2"),
    _wrong("map", "[x[i] - x[j] for i<j] gives q·k for d = 2", "must stay separate"),
    _wrong("map", "[x] gives -(q·k)", "no real features give a negative coefficient"),
    _right("identity", "exp(q·k) = exp(norm2(q)/2)*exp(norm2(k)/2)*exp(-norm2(q - k)/2)"),
    _wrong("identity", "exp(a + b) = exp(a) + exp(b)", "the sides differ"),
    _right("identity", "norm2(q - k) = norm2(q) + norm2(k) - 2*(q·k)"),
    _wrong("identity", "norm2(q + k) = norm2(q) + norm2(k)", "left has 2, right has 0"),
    _right("identity", "1 + t + t**2/2 = ((1 + t)**2 + 1)/2"),
    _right("identity", "relu(a) - relu(-a) = a"),
    _wrong("identity", "relu(a)*relu(b) = relu(a*b)", "the sides differ"),
    _right("identity", "cos(a - b) = cos(a)*cos(b) + sin(a)*sin(b)"),
    _wrong("identity", "sqrt(a**2) = a", "the sides differ"),
    _right("identity", "sqrt(a**2) = a where a > 0"),
    _right("cost", "softmax: n**2*(D + M)", "counted"),
    _right("cost", "softmax: O(n**2)", "D and M are fixed"),
    _wrong("cost", "softmax: O(n)", "the term n² is missing"),
    _wrong("cost", "softmax: O(n**2*D) where D <= M", "right when M = D"),
    _right("cost", "projections: n*F*(2*D + M)"),
    _right("cost", "linear: 2*n*m*M + 2*n*m"),
    _right("cost", "linear: O(n)", "m and M are fixed"),
    _right("cost", "linear: O(n**2)", "loose; O(n) is tight"),
    _wrong("cost", "linear: Theta(n**2)", "too loose"),
    _wrong("cost", "linear: Theta(n*log(n)*m*M)", "too loose"),
    _right("cost", "chunked: O(n*m*M)"),
    _right("cost", "linear memory: O(m*M)"),
    _wrong("cost", "softmax memory: O(n)", "the term n² is missing"),
    _right("cost", "softmax streamed memory: O(n)"),
    _right("cost", "softmax training: 3*n**2*(D + M)"),
    _right("cost", "linear decoding: O(b*d**2 + b*h*m*M)"),
    _wrong("cost", "linear decoding: O(b*n*d)", "b·n·d is more than it takes"),
    _right("cost", "multi-head decoding n steps: O(b*n*d**2 + b*n**2*d)"),
    _right("einsum", "bhnk,bhmk->bhnm"),
    _right("einsum", "nf,nv->fv"),
    _wrong("einsum", "bnk,bmk->bnk", "nothing is contracted"),
    _wrong("einsum", "bd,dk->bk for 2 3, 4 5", "the index d is 3 in bd and 4 in dk"),
    _wrong("einsum", "bd,dk->bk computes bd,hdk->bhk", "its output lacks h"),
    _wrong("einsum", "nd,md->nm computes nd,md->mn", "it computes md,nd->mn"),
    _right("einsum", "nd,md->nm computes nd,md->mn in any order"),
    _right("sign", "1 + q·k + (q·k)**2/2 > 0", "no real root"),
    _wrong("sign", "1 + q·k + (q·k)**2/2 + (q·k)**3/6 > 0", "it is negative here"),
    _wrong("sign", "(q·k + 1)**2 > 0", "it is non-negative, but 0 is reached"),
    _right("sign", "sigmoid(q·k) > 0", "(0, 1)"),
    _wrong("sign", "cosine(q, k)", "0 is reached"),
    _wrong("sign", "sim > 0 is necessary", "the sum can differ from 0 without it"),
    _right("psd", "exp(-norm2(q - k)/2)", "Schoenberg"),
    _right("psd", "exp(q·k) - 1 - q·k", "power series"),
    _right("psd", "1/(1 + norm(q - k))", "mixture"),
    _wrong("psd", "exp(-norm(q - k)**3)", "eigenvalue"),
    _right("sign", "norm(q)*norm(k) - q·k >= 0", "sum of squares"),
    _right("sign", "exp(q·k) - 1 - q·k >= 0", "it grows away"),
    _right("psd", "exp(q·k/√2)"),
    _right("psd", "cosine(q, k)"),
    _right("psd", "sum(i, relu(q[i])*relu(k[i]))", "one feature"),
    _wrong("psd", "tanh(q·k)", "eigenvalue"),
    _wrong("psd", "relu(q·k)", "eigenvalue"),
    _wrong("psd", "(q·k - 1)**2", "eigenvalue"),
    _wrong("psd", "norm2(q)", "not symmetric"),
    _right("moments", "E[q·k] = d*mu**2"),
    _right("moments", "Var[q·k] = d*(sigma**4 + 2*mu**2*sigma**2)"),
    _right(
        "moments",
        "Var[q·k] = d*(sigma_q**2*sigma_k**2 + mu_q**2*sigma_k**2 + mu_k**2*sigma_q**2)",
    ),
    _wrong("moments", "Var[q·k] = d*sigma**4", "right where mu_k = 0, mu_q = 0"),
    _right("moments", "E[q*k] = 6 where E[q] = 2, E[k] = 3", "may have different laws"),
    _wrong("moments", "E[k] = 2 where E[q] = 2", "may have different laws"),
    _wrong("moments", "E[x**2] = E[x]**2", "differ by sigma_x²"),
    _right("moments", "Var[x + y] = Var[x] + Var[y]"),
    _right("dimension", "poly:degree=3,constant=0 has C(d + 2, 3) features"),
    _wrong("dimension", "(q·k - 1)**2 needs C(d + 2, 2) features", "of any real map"),
    _right("gradient", "gumbel trains k"),
    _right("gradient", "identity trains every key", "analytic"),
    _right("ranking", "taylor:order=2 beats elu"),
    _right("ranking", "taylor:order=4 beats taylor:order=2"),
)

CLAIMS = (*(claim for statement in STATEMENTS for claim in statement.claims), *FURTHER)
