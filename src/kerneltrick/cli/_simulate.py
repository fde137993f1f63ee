"""`kerneltrick simulate`: check the theory by experiments, as tables and pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich import box
from rich.table import Table

from kerneltrick import simulate
from kerneltrick._files import is_standard_output
from kerneltrick._pictures import picture_format, require_matplotlib
from kerneltrick._text import shown
from kerneltrick.cli._arguments import DataError, UsageError
from kerneltrick.cli._command import Command
from kerneltrick.cli._options import Seed
from kerneltrick.cli._output import check_writable, console, plain, words_stream

Found = TypeVar("Found")

simulate_app = typer.Typer(
    help="Check the theory by simulation. Prints a table; --out draws a picture too (extra: plot).",
    rich_markup_mode=None,
)


@simulate_app.callback(invoke_without_command=True)
def _simulate(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        show_default=False,
        help="Also draw a picture: a .png, .svg or .pdf file, or - for standard output. "
        "Default: no picture.",
    ),
]


@simulate_app.command("moments", cls=Command)
def _moments(
    out: Out = None,
    seed: Seed = 0,
    largest: Annotated[int, typer.Option("--d", help="Largest width d.")] = 1024,
    draws: Annotated[
        int, typer.Option("--draws", help="Number of pairs q, k for each width.")
    ] = 20_000,
    mu: Annotated[float, typer.Option("--mu", help="Mean of the coordinates of q and k.")] = 0.0,
    sigma: Annotated[
        float, typer.Option("--sigma", help="Standard deviation of the coordinates.")
    ] = 1.0,
) -> None:
    """Measure the variance of q·k, with and without 1/√d, and compare it with d(σ⁴ + 2μ²σ²)."""
    _check_picture(out)
    widths = _powers("--d", largest)
    found = _run(simulate.moments, widths, mu=mu, sigma=sigma, draws=draws, seed=seed)
    rows = [
        (
            str(row.d),
            f"{row.mean:.2f}",
            shown(row.theory_mean, 4),
            shown(row.variance, 4),
            shown(row.theory_variance, 4),
            f"{row.z_score:+.1f}",
            f"{row.scaled_variance:.3f}",
            shown(row.theory_scaled_variance, 4),
        )
        for row in found.rows
    ]
    _show(
        out,
        f"q·k of {found.draws:,} pairs with coordinates N({found.mu:g}, {found.sigma**2:g}), "
        f"seed {seed}",
        ("d", "mean", "d·μ²", "variance", "theory", "z", "Var[q·k/√d]", "theory"),
        rows,
        "Theory: Var[q·k] = d(σ⁴ + 2μ²σ²). z is the distance from theory in standard errors.",
    )
    _draw(simulate.moments_figure, found, out)


@simulate_app.command("scaling", cls=Command)
def _scaling(
    out: Out = None,
    seed: Seed = 0,
    largest: Annotated[int, typer.Option("--d", help="Largest width d.")] = 1024,
    n: Annotated[int, typer.Option("--n", help="Number of keys.")] = 1024,
    queries: Annotated[
        int, typer.Option("--queries", help="Number of queries to average over.")
    ] = 256,
) -> None:
    """Show how the entropy and the gradient of softmax collapse as d grows without 1/√d."""
    _check_picture(out)
    found = _run(simulate.scaling, _powers("--d", largest), n=n, queries=queries, seed=seed)
    rows = [
        (
            str(row.d),
            f"{row.plain.entropy:.2f}",
            f"{row.theory_plain:.2f}",
            f"{row.plain.largest:.3f}",
            f"{row.plain.gradient:.3f}",
            f"{row.scaled.entropy:.2f}",
            f"{row.theory_scaled:.2f}",
            f"{row.scaled.largest:.3f}",
            f"{row.scaled.gradient:.3f}",
        )
        for row in found.rows
    ]
    _show(
        out,
        f"softmax over n = {found.n} keys, means of {found.queries} queries, N(0, 1), seed {seed}",
        (
            "d",
            "q·k: entropy",
            "theory",
            "largest",
            "1 − Σp²",
            "q·k/√d: entropy",
            "theory",
            "largest",
            "1 − Σp²",
        ),
        rows,
        "Entropy is in nats. Theory: log n − variance/2 until it is 0, to leading order in n. "
        "1 − Σp² is the trace of the gradient.",
    )
    _draw(simulate.scaling_figure, found, out)


@simulate_app.command("features", cls=Command)
def _features(
    out: Out = None,
    seed: Seed = 0,
    d: Annotated[int, typer.Option("--d", help="Width of queries and keys.")] = 16,
    n: Annotated[int, typer.Option("--n", help="Number of tokens.")] = 64,
    largest: Annotated[int, typer.Option("--m", help="Largest number of features m.")] = 2048,
    sizes: Annotated[
        str,
        typer.Option(
            "--sizes",
            metavar="NUMBERS",
            help="Standard deviations of the coordinates, separated by commas.",
        ),
    ] = "0.5,1",
    draws: Annotated[
        int, typer.Option("--draws", help="Number of random projections to average over.")
    ] = 20,
) -> None:
    """Measure the error of FAVOR+ for growing m and compare it with theory and with ELU+1."""
    _check_picture(out)
    counts = [m for m in _powers("--m", largest) if m >= 16]
    if not counts:
        raise UsageError(f"--m must be at least 16, not {largest}")
    found = [
        _run(simulate.features, counts, d=d, n=n, size=size, draws=draws, seed=seed)
        for size in _numbers("--sizes", sizes)
    ]
    for errors in found:
        positive = [row for row in errors.rows if row.kind == "positive"]
        rows = []
        for at, row in enumerate(positive):
            others = [errors.rows[at + len(positive) * kind] for kind in (1, 2)]
            cells = [shown(x) for r in (row, *others) for x in (r.kernel, r.theory)]
            limit = shown(row.theory_weights or 0.0)
            rows.append((str(row.m), *cells, shown(row.weights), limit))
        _show(
            out,
            f"FAVOR+, d = {errors.d}, n = {errors.n}, coordinates of size {errors.size:g}: mean "
            f"‖q+k‖² = {errors.mean_square:.1f}; {errors.draws} draws, seed {seed}",
            (
                "m",
                "positive",
                "theory",
                "hyperbolic",
                "theory",
                "trig",
                "theory",
                "weights",
                "limit",
            ),
            rows,
            f"Columns 2 to 7 are relative errors of φ(q)·φ(k); weights is ‖A − S‖/‖S‖ for the "
            f"positive kind. ELU+1 has {errors.elu:.3f}, uniform weights have "
            f"{errors.uniform:.3f}. FAVOR+ beats ELU+1 "
            + (f"from m = {errors.overtakes} on." if errors.overtakes else "at no m tried."),
        )
    _draw(simulate.features_figure, found, out)


@simulate_app.command("representer", cls=Command)
def _representer(
    out: Out = None,
    seed: Seed = 0,
    n: Annotated[int, typer.Option("--n", help="Number of points.")] = 24,
    penalty: Annotated[
        float, typer.Option("--penalty", help="Weight λ of ‖f‖² next to the mean loss.")
    ] = 1e-3,
    length: Annotated[
        float, typer.Option("--length", help="Length scale of the RBF kernel.")
    ] = 0.5,
    noise: Annotated[float, typer.Option("--noise", help="Standard deviation of the noise.")] = 0.2,
    steps: Annotated[int, typer.Option("--steps", help="Number of gradient steps.")] = 3000,
) -> None:
    """Follow gradient descent in the RKHS on its way to the kernel ridge solution."""
    _check_picture(out)
    found = _run(
        simulate.representer,
        n=n,
        mean_penalty=penalty,
        length=length,
        noise=noise,
        steps=steps,
        seed=seed,
    )
    rows = [
        (
            str(row.step),
            f"{row.loss:.4f}",
            f"{row.norm:.3f}",
            f"{row.objective:.5f}",
            shown(row.distance),
            shown(row.bound),
        )
        for row in found.rows
    ]
    ridge = found.ridge
    objective = ridge.loss + ridge.mean_penalty * ridge.norm**2
    rows.append(("ridge", f"{ridge.loss:.4f}", f"{ridge.norm:.3f}", f"{objective:.5f}", "0", "–"))
    furthest = abs(found.coefficients - found.ridge_coefficients).max()
    _show(
        out,
        f"(1/N)Σ(f(xᵢ) − yᵢ)² + λ‖f‖², N = {len(found.x)}, λ = {found.mean_penalty:g}, RBF of "
        f"length {found.length:g}, seed {seed}",
        ("step", "loss", "‖f‖", "objective", "‖f − ridge‖", "bound"),
        rows,
        f"Every f is Σαᵢk(xᵢ, ·). The ridge solution is α = (K + Nλ·I)⁻¹y; the last α differs "
        f"from it by at most {furthest:.1e}. The bound √(gap/λ) does not need the solution.",
    )
    _draw(simulate.representer_figure, found, out)


@simulate_app.command("svm", cls=Command)
def _svm(
    out: Out = None,
    seed: Seed = 0,
    n: Annotated[int, typer.Option("--n", help="Number of points.")] = 200,
    C: Annotated[float, typer.Option("--C", help="Penalty C of the SVM.")] = 1.0,
    length: Annotated[float, typer.Option("--length", help="Length scale of the kernel.")] = 0.6,
    noise: Annotated[float, typer.Option("--noise", help="Standard deviation of the noise.")] = 0.2,
) -> None:
    """Compare an SVM and attention that use the same kernel (extra: sklearn)."""
    _check_picture(out)
    found = _run(simulate.svm, n=n, C=C, length=length, noise=noise, seed=seed)
    facts: dict[str, Callable[[simulate.Machine], str]] = {
        "right on 2000 new points": lambda machine: f"{machine.accuracy:.1%}",
        f"points it needs, of {found.n}": lambda machine: str(machine.carriers),
        "largest |value|": lambda machine: f"{machine.largest:.2f}",
        f"n×n against {found.m} features": lambda machine: _tiny(machine.by_features),
        "change without one sure point": lambda machine: _tiny(machine.without_one),
    }
    rows = [
        ("value at x", "Σαᵢk(xᵢ, x) + b", "Σk(xᵢ, x)yᵢ / Σk(xᵢ, x)"),
        ("multipliers", "α, learned from the labels", "the labels themselves"),
        *((name, *map(fact, found.machines)) for name, fact in facts.items()),
    ]
    _show(
        out,
        f"two half moons, n = {found.n}, noise {found.noise:g}, C = {found.C:g}, seed {seed}",
        ("", "SVM", "attention"),
        rows,
        f"One kernel: RBF of length {found.length:g}, its series cut off after order "
        f"{found.order} (largest difference {found.kernel_difference:.3f}). Attention with the "
        f"RBF of half that length: {found.sharper:.1%} right.",
    )
    _draw(simulate.svm_figure, found, out)


def _check_picture(path: Path | None) -> None:
    """Check the picture that --out asks for, so that it cannot fail after the work."""
    if path is None:
        return
    try:
        picture_format(path)
        require_matplotlib()
    except ValueError as error:
        raise UsageError(f"--out: {error}") from None
    except ImportError as error:
        raise DataError(str(error)) from None
    check_writable(path)


def _run(simulation: Callable[..., Found], *arguments: Any, **options: Any) -> Found:
    try:
        return simulation(*arguments, **options)
    except ImportError as error:
        raise DataError(str(error)) from None
    except ValueError as error:
        raise UsageError(str(error)) from None


def _draw(figure: Callable[[Any], Any], found: Any, path: Path | None) -> None:
    """Draw the picture if --out asks for one. The table is on the screen by now."""
    if path is None:
        return
    simulate.save_figure(figure(found), path)
    if not is_standard_output(path):
        typer.echo(f"wrote {path}")


def _powers(option: str, largest: int) -> list[int]:
    """1, 2, 4, … up to `largest`."""
    if not 1 <= largest <= 2**20:
        raise UsageError(f"{option} must be between 1 and {2**20}, not {largest}")
    return [2**p for p in range(largest.bit_length())]


def _numbers(option: str, text: str) -> list[float]:
    """Numbers separated by commas.

    >>> _numbers("--sizes", "0.5, 1")
    [0.5, 1.0]
    """
    try:
        found = [float(piece) for piece in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} takes numbers such as 0.5,1, not {text!r}") from None
    if len(found) > 4:
        raise UsageError(f"{option} takes at most 4 numbers, not {len(found)}")
    return found


def _tiny(x: float) -> str:
    """A difference as text. Rounding errors and solver tolerances are shown as upper bounds.

    >>> _tiny(3e-15), _tiny(2e-6), _tiny(0.0123)
    ('< 1e-12', '< 1e-4', '0.012')
    """
    if math.isnan(x):
        return "–"
    return "< 1e-12" if x < 1e-12 else "< 1e-4" if x < 1e-4 else shown(x, 2)


def _show(
    picture: Path | None,
    title: str,
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    legend: str,
) -> None:
    out = console(words_stream({} if picture is None else {"--out": picture}))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in names:
        table.add_column(plain(name), justify="right", overflow="fold")
    for row in rows:
        table.add_row(*map(plain, row))
    out.print(plain(title))
    out.print(table)
    out.print(plain(legend, "dim"))
