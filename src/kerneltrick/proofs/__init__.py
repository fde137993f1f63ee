"""Decide claims about attention: proven, refuted by a counterexample, or undecided."""

from kerneltrick.proofs._claims import CLAIMS, FURTHER, PROSE, STATEMENTS, Claim, Statement
from kerneltrick.proofs._cost import check_cost
from kerneltrick.proofs._decide import EXAMPLES, KINDS
from kerneltrick.proofs._dimension import check_dimension
from kerneltrick.proofs._einsum import check_einsum
from kerneltrick.proofs._feature_map import check_feature_map
from kerneltrick.proofs._gradient import check_gradient
from kerneltrick.proofs._identity import check_identity
from kerneltrick.proofs._moments import check_moments
from kerneltrick.proofs._prove import prove
from kerneltrick.proofs._psd import check_psd
from kerneltrick.proofs._ranking import check_ranking
from kerneltrick.proofs._shapes import check_shapes
from kerneltrick.proofs._sign import check_sign
from kerneltrick.proofs._syntax import ClaimError
from kerneltrick.proofs._verdict import Verdict

__all__ = [
    "CLAIMS",
    "EXAMPLES",
    "FURTHER",
    "KINDS",
    "PROSE",
    "STATEMENTS",
    "Claim",
    "ClaimError",
    "Statement",
    "Verdict",
    "check_cost",
    "check_dimension",
    "check_einsum",
    "check_feature_map",
    "check_gradient",
    "check_identity",
    "check_moments",
    "check_psd",
    "check_ranking",
    "check_shapes",
    "check_sign",
    "prove",
]
