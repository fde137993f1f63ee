"""`kerneltrick prove`: decide whether a claim is true."""

from __future__ import annotations

from typing import Annotated

import typer

from kerneltrick.cli._arguments import ERROR, UsageError

CODES = {"true": 0, "false": 1, "undecided": 2}  # errors exit with 3


def prove_command(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="Kind of claim: map, identity, cost, einsum, sign, psd, moments, dimension, "
            "shapes, gradient or ranking.",
        ),
    ],
    claim: Annotated[
        str | None,
        typer.Argument(metavar="CLAIM", show_default=False, help="The claim, in quotes."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            help="Give up after this time. The claim is then undecided.",
        ),
    ] = 30.0,
) -> None:
    """Prove or refute a claim (extra: proofs).

    Exits with 0 (true), 1 (false), 2 (undecided), 3 (error).

    Examples, one for each kind of claim; some of them are false:

    \b
    prove map       "[1, √2*x, x[i]*x[j] for i<=j] gives (q·k + 1)**2"
    prove identity  "(q·k + 1)**2 = (q·k)**2 + 2*(q·k) + 1"
    prove cost      "multi-query decoding traffic: O(b*n*d)"
    prove einsum    "bd,dq->bhq"
    prove sign      "relu(q·k) > 0"
    prove psd       "elu(q·k) + 1"
    prove moments   "Var[q·k] = d where mu = 0, sigma = 1"
    prove dimension "taylor:order=2 has d**2 features"
    prove shapes    "phi.T @ S -> n M where phi: n m, S: m M"
    prove gradient  "hard trains k"
    prove ranking   "relu beats elu"
    """
    try:
        from kerneltrick import proofs
    except ImportError as error:
        raise UsageError(str(error)) from None
    if kind not in proofs.KINDS:
        raise UsageError(f"unknown kind of claim {kind!r}; known are {', '.join(proofs.KINDS)}")
    if not timeout > 0:
        raise UsageError(f"--timeout must be > 0, not {timeout:g}")
    if claim is None:
        raise UsageError(
            f"the claim is missing; an example is: prove {kind} {proofs.EXAMPLES[kind]!r}"
        )
    try:
        verdict = proofs.prove(kind, claim, timeout=min(timeout, 86_400))
    except proofs.ClaimError as error:
        typer.echo(f"kerneltrick: {error}", err=True)
        raise typer.Exit(ERROR) from None
    except ValueError as error:
        raise UsageError(str(error)) from None
    typer.echo(verdict.to_json() if as_json else str(verdict))
    raise typer.Exit(CODES[verdict.status])
